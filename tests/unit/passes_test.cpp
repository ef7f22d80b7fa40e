// Passes on segments written as text: which sums norms may take, which views are one, what is dead,
// what is handed on, and what may write where its operand was.
#include "lower/passes.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "lower/uses.h"
#include "support/graph_text.h"

using namespace nns;
using namespace nns::lower;

namespace {

// A program whose one segment calls what the graph calls; slots have the numbers of values.
Program program_of(const std::string& body) {
  const graph::Graph g = test::read_graph("graph \"G\" training\n" + body);
  Program out;
  for (const graph::Value& value : g.values) {
    const SlotRole role = value.role == graph::Role::input       ? SlotRole::input
                          : value.role == graph::Role::parameter ? SlotRole::parameter
                                                                 : SlotRole::activation;
    out.slots.push_back({value.id, value.type, role, value.name, {}, {}});
  }
  Segment& segment = out.segments.emplace_back();
  segment.name = "forward";
  segment.inputs = g.inputs;
  out.parameters = g.parameters;
  for (const graph::Node& node : g.nodes) {
    Instr instr;
    instr.op = node.op;
    instr.args = node.args;
    instr.outs = node.outputs;
    instr.module = node.module;
    segment.instrs.push_back(std::move(instr));
  }
  for (const graph::Nest& nest : g.outputs) segment.outputs.push_back(std::get<Ref>(nest.node).id);
  return out;
}

std::vector<std::string> calls_of(const Program& program) {
  std::vector<std::string> out;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) out.push_back(instr.op);
  return out;
}
using Calls = std::vector<std::string>;

const std::string kInputs =
    "input %a \"a\": float32[4, 6]\ninput %b \"b\": float32[4, 6]\n"
    "input %c \"c\": float32[6]\ninput %w \"w\": float32[6]\n"
    "input %d \"d\": float64[4, 6]\ninput %m \"m\": float32[4, 1]\n";
const std::string kNorm =
    "%n, %mean, %rstd = nnscaler::layer_norm(input=%s, normalized_shape=[6], weight=%w, bias=%w, "
    "eps=0.01)  -- h.0.ln\n";

}  // namespace

TEST_CASE("a norm takes the sum before it, where that is plain and its own", "[passes]") {
  const auto fused = [](const std::string& sum, const std::string& between = "",
                        const std::string& after = "", const std::string& norm = kNorm) {
    Program p = program_of(kInputs + sum + between + norm + after + "output %n\n");
    fuse_sums(p, "cpu");
    const auto calls = calls_of(p);
    return std::count(calls.begin(), calls.end(), "nnscaler::add_layer_norm") > 0;
  };
  const std::string plain = "%s = aten::add.Tensor(self=%a, other=%b, alpha=1)  -- h.0\n";
  CHECK(fused(plain));
  CHECK(fused("%s = aten::add.Tensor(self=%a, other=%b)  -- h.0.mlp\n"));
  CHECK(fused("%s = aten::add.Tensor(self=%a, other=%b, alpha=1.0)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%b, alpha=2)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%b, alpha=0)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%b, alpha=0.5)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=1, alpha=1)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::mul.Tensor(self=%a, other=%b)  -- h.0\n"));
  // Broadcast, of another type, of another block.
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%c, alpha=1)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%c, other=%a, alpha=1)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%d, alpha=1)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%d, other=%d, alpha=1)  -- h.0\n"));
  CHECK_FALSE(fused("%s = aten::add.Tensor(self=%a, other=%b, alpha=1)  -- h.1\n"));
  // Who reads the sum before the norm would find it not made yet.
  CHECK_FALSE(fused(plain, "%r = aten::relu(self=%s)  -- h.0\n"));
  CHECK(fused(plain, "%r = aten::relu(self=%a)  -- h.0\n"));
  CHECK(fused(plain, "", "%r = aten::relu(self=%s)  -- h.0\n"));
  // A norm of what is no sum.
  CHECK_FALSE(fused("%s = aten::relu(self=%a)  -- h.0\n"));
}

TEST_CASE("the call of a norm with its sum gives both, in the norm's place", "[passes]") {
  Program p = program_of(kInputs + "%s = aten::add.Tensor(self=%a, other=%b)  -- h.0\n" +
                         "%r = aten::relu(self=%a)  -- h.0\n" + kNorm +
                         "%t = aten::mul.Tensor(self=%s, other=%r)\noutput %t\noutput %n\n");
  const auto slot = [&](const Instr& instr, size_t i) { return instr.outs.at(i); };
  const int sum = slot(p.segments[0].instrs[0], 0), norm = slot(p.segments[0].instrs[2], 0);
  fuse_sums(p, "cpu");
  CHECK(calls_of(p) == Calls{"aten::relu", "nnscaler::add_layer_norm", "aten::mul.Tensor"});
  const Instr& both = p.segments[0].instrs[1];
  CHECK(both.outs[0] == sum);
  CHECK(both.outs[1] == norm);
  CHECK(both.outs.size() == 4);
  CHECK(both.args[0].name == "input");
  CHECK(std::get<Ref>(both.args[0].value).id == 0);
  CHECK(both.args[1].name == "addend");
  CHECK(std::get<Ref>(both.args[1].value).id == 1);
  // Of two norms the first takes the sum.
  Program two = program_of(kInputs + "%s = aten::add.Tensor(self=%a, other=%b)  -- h.0\n" + kNorm +
                           "%n2, %mean2, %rstd2 = nnscaler::layer_norm(input=%s, "
                           "normalized_shape=[6], weight=%w, bias=%w, eps=0.01)  -- h.0.ln\n"
                           "output %n\noutput %n2\n");
  fuse_sums(two, "cpu");
  CHECK(calls_of(two) == Calls{"nnscaler::add_layer_norm", "nnscaler::layer_norm"});
}

TEST_CASE("the gradient of a norm takes what is added to it, where that is there", "[passes]") {
  const std::string norm =
      "%g, %gw, %gb = nnscaler::layer_norm_backward(grad_out=%a, input=%b, normalized_shape=[6], "
      "mean=%m, rstd=%m, weight=%w, bias=%w, output_mask=[true, true, true])  -- h.0.ln\n";
  const auto calls = [&](const std::string& before, const std::string& after) {
    Program p = program_of(kInputs + before + norm + after);
    fuse_sums(p, "cpu");
    return calls_of(p).size();
  };
  const std::string other = "%o = aten::relu(self=%b)  -- h.0\n";
  const std::string sum = "%s = aten::add.Tensor(self=%o, other=%g, alpha=1)  -- h.0\n";
  CHECK(calls(other, sum + "output %s\n") == 2);
  CHECK(calls(other, "%s = aten::add.Tensor(self=%g, other=%o, alpha=1)  -- h.0\noutput %s\n") ==
        2);
  CHECK(calls("", "%s = aten::add.Tensor(self=%g, other=%b, alpha=1)  -- h.0\noutput %s\n") == 1);
  // The other is made later; the gradient is wanted beside the sum; the sum is of another block.
  CHECK(calls("", other + sum + "output %s\n") == 3);
  CHECK(calls(other, sum + "%t = aten::mul.Tensor(self=%s, other=%g)\noutput %t\n") == 4);
  CHECK(calls(other, sum + "output %g\noutput %s\n") == 3);
  CHECK(calls(other, "%s = aten::add.Tensor(self=%o, other=%g, alpha=1)  -- h.1\noutput %s\n") ==
        3);
  CHECK(calls(other, "%s = aten::add.Tensor(self=%o, other=%g, alpha=2)  -- h.0\noutput %s\n") ==
        3);
  CHECK(calls("", "%s = aten::add.Tensor(self=%g, other=%g, alpha=1)  -- h.0\noutput %s\n") == 2);
  // The call gives the sum in the gradient's place.
  Program p = program_of(kInputs + other + norm + sum + "output %s\n");
  const int summed = p.segments[0].outputs[0], taken = p.segments[0].instrs[0].outs[0];
  fuse_sums(p, "cpu");
  const Instr& call = p.segments[0].instrs[1];
  CHECK(call.outs[0] == summed);
  CHECK(std::get<Ref>(*find_arg(call, "addend")).id == taken);
  // One addend each.
  CHECK(calls(other, sum + "%t = aten::add.Tensor(self=%s, other=%b)  -- h.0\noutput %t\n") == 3);
}

TEST_CASE("calls whose results nobody reads go, others stay", "[passes]") {
  Program p = program_of(
      "input %a \"a\": float64[4, 6]\n"
      "%r = aten::relu(self=%a)\n%x = aten::sin(self=%r)\n%y = aten::cos(self=%r)\n"
      "%q = aten::tanh(self=%x)\n%z = aten::neg(self=%y)\noutput %z\n");
  remove_dead_calls(p, {});
  CHECK(calls_of(p) == Calls{"aten::relu", "aten::cos", "aten::neg"});
  // A message is wanted by another rank; what an accumulation takes, too.
  const std::string send =
      "%r = aten::relu(self=%a)\n%s = aten::sin(self=%a)\n"
      "comm::send(self=%r, moves=[1, 0, 4, 0, 6], tag=0, first=0)\n";
  Program message = program_of("input %a \"a\": float64[4, 6]\n" + send + "output %a\n");
  remove_dead_calls(message, {});
  CHECK(calls_of(message) == Calls{"aten::relu", "comm::send"});
}

TEST_CASE("of what another rank sends on, only collectives stay", "[passes]") {
  const std::string text =
      "input %a \"a\": float64[4, 6]\n"
      "%r = aten::relu(self=%a)\n%s: float64[4, 6] = comm::all_reduce(self=%r, group=[0, 1])\n"
      "%t = aten::sin(self=%s)\n%u = aten::cos(self=%a)\noutput %a\n";
  Program p = program_of(text);
  const int sent = p.segments[0].instrs[2].outs[0];
  Program q = p;
  remove_dead_calls(p, {sent});
  CHECK(calls_of(p) == Calls{"aten::relu", "comm::all_reduce"});
  remove_dead_calls(q, {});
  CHECK(calls_of(q).empty());
}

TEST_CASE("segments hand on what later ones read, each once", "[passes]") {
  Program p = program_of(
      "input %a \"a\": float64[4]\n"
      "%x = aten::sin(self=%a)\n%y = aten::cos(self=%x)\n%z = aten::mul.Tensor(self=%x, other=%y)\n"
      "%u = aten::mul.Tensor(self=%z, other=%x)\n%v = aten::mul.Tensor(self=%x, other=%a)\n"
      "output %v\n");
  auto& instrs = p.segments[0].instrs;
  for (int k : {1, 2}) {
    Segment& next = p.segments.emplace_back();
    next.name = "later" + std::to_string(k);
  }
  // y is made and read in the first alone; x is read in all; a is a sample field.
  std::vector<Instr> all = std::move(p.segments[0].instrs);
  p.segments[0].instrs = {all[0], all[1], all[2]};
  p.segments[1].instrs = {all[3]};
  p.segments[2].instrs = {all[4]};
  (void)instrs;
  find_saved(p);
  const int a = 0, x = all[0].outs[0], z = all[2].outs[0];
  CHECK(p.segments[0].saved_in.empty());
  CHECK(p.segments[0].saved_out == std::vector<int>{a, x, z});
  CHECK(p.segments[1].saved_in == std::vector<int>{x, z});
  CHECK(p.segments[1].saved_out.empty());
  CHECK(p.segments[2].saved_in == std::vector<int>{a, x});
  CHECK(p.segments[2].saved_out.empty());
}

namespace {

// A backward segment that was handed something, so that memory is reused in it.
Program backward_of(const std::string& body) {
  Program p = program_of(body);
  p.segments[0].kind = SegmentKind::backward;
  p.segments[0].saved_in = {0};
  return p;
}
std::string last_call(const std::string& body) {
  Program p = backward_of("input %a \"a\": float64[4, 6]\n" + body);
  reuse_memory(p);
  return p.segments[0].instrs.back().op;
}
constexpr const char* kInPlace = "aten::add_.Tensor";
constexpr const char* kApart = "aten::add.Tensor";

}  // namespace

TEST_CASE("a sum is written into an addend that nobody else reads", "[passes]") {
  const std::string made = "%x = aten::sin(self=%a)\n%y = aten::cos(self=%a)\n";
  const std::string sum = "%s = aten::add.Tensor(self=%x, other=%y)\n";
  CHECK(last_call(made + sum + "output %s\n") == kInPlace);
  // Either of them may be it.
  Program p = backward_of("input %a \"a\": float64[4, 6]\n" + made + sum +
                          "%t = aten::mul.Tensor(self=%s, other=%x)\noutput %t\n");
  const int x = 1, y = 2;
  reuse_memory(p);
  const Instr& turned = p.segments[0].instrs[2];
  CHECK(turned.op == kInPlace);
  CHECK(std::get<Ref>(turned.args[0].value).id == y);
  CHECK(std::get<Ref>(turned.args[1].value).id == x);
  // Not what is read later, nor a result, nor a sample, nor a weight.
  CHECK(
      last_call("%x = aten::sin(self=%a)\n%s = aten::add.Tensor(self=%x, other=%x)\noutput %s\n") ==
      kApart);
  CHECK(last_call(made + sum + "output %s\noutput %x\noutput %y\n") == kApart);
  CHECK(last_call("%s = aten::add.Tensor(self=%a, other=%a)\noutput %s\n") == kApart);
  // Not what has another size, nor what is a view of something that lives on.
  CHECK(last_call("%x = aten::sum.dim_IntList(self=%a, dim=[0], keepdim=true)\n"
                  "%s = aten::add.Tensor(self=%x, other=%a)\noutput %s\n") == kApart);
  CHECK(last_call("%x = aten::sin(self=%a)\n%v = aten::narrow(self=%x, dim=0, start=0, length=2)\n"
                  "%b = aten::narrow(self=%a, dim=0, start=0, length=2)\n"
                  "%s = aten::add.Tensor(self=%v, other=%b)\noutput %s\n") == kApart);
  // Nor where a factor stands beside it.
  CHECK(last_call(made + "%s = aten::add.Tensor(self=%x, other=%y, alpha=2)\noutput %s\n") ==
        kApart);
}

TEST_CASE("the first slot of a program is one like others", "[passes]") {
  Program p = backward_of(
      "%x = aten::ones(size=[4, 6])\n%y = aten::sin(self=%x)\n"
      "%s = aten::add.Tensor(self=%x, other=%y)\n%t = aten::mul.Tensor(self=%s, other=%y)\n"
      "output %t\n");
  p.segments[0].saved_in = {1};
  reuse_memory(p);
  const Instr& sum = p.segments[0].instrs[2];
  CHECK(sum.op == kInPlace);
  CHECK(std::get<Ref>(sum.args[0].value).id == 0);
}

TEST_CASE("sums of sums go into one memory, as long as nobody looks", "[passes]") {
  Program p = backward_of(
      "input %a \"a\": float64[4, 6]\n"
      "%x = aten::sin(self=%a)\n%y = aten::cos(self=%a)\n%s = aten::add.Tensor(self=%x, other=%y)\n"
      "%z = aten::tanh(self=%a)\n%t = aten::add.Tensor(self=%s, other=%z)\noutput %t\n");
  reuse_memory(p);
  const auto& instrs = p.segments[0].instrs;
  CHECK(instrs[2].op == kInPlace);
  CHECK(instrs[4].op == kInPlace);
  CHECK(std::get<Ref>(instrs[4].args[0].value).id == instrs[2].outs[0]);
  // The first sum is read after the second: that goes into the other addend.
  Program q = backward_of(
      "input %a \"a\": float64[4, 6]\n"
      "%x = aten::sin(self=%a)\n%y = aten::cos(self=%a)\n%s = aten::add.Tensor(self=%x, other=%y)\n"
      "%z = aten::tanh(self=%a)\n%t = aten::add.Tensor(self=%s, other=%z)\n"
      "%u = aten::mul.Tensor(self=%t, other=%s)\noutput %u\n");
  reuse_memory(q);
  CHECK(q.segments[0].instrs[2].op == kInPlace);
  CHECK(q.segments[0].instrs[4].op == kInPlace);
  CHECK(std::get<Ref>(q.segments[0].instrs[4].args[0].value).id == q.segments[0].instrs[3].outs[0]);
  // Where both are read later neither is written.
  Program r = backward_of(
      "input %a \"a\": float64[4, 6]\n"
      "%x = aten::sin(self=%a)\n%y = aten::cos(self=%a)\n%s = aten::add.Tensor(self=%x, other=%y)\n"
      "%t = aten::mul.Tensor(self=%x, other=%y)\n%u = aten::mul.Tensor(self=%t, other=%s)\n"
      "output %u\n");
  reuse_memory(r);
  CHECK(r.segments[0].instrs[2].op == kApart);
}

TEST_CASE("a gradient is kept where it is nobody else's, else copied", "[passes]") {
  const auto owned = [](const std::string& body) {
    Program p = backward_of(
        "input %a \"a\": float64[4, 6]\n"
        "parameter %w \"w\": float64[4, 6] grad\n" +
        body);
    Instr add;
    add.kind = InstrKind::accumulate;
    add.target = 1;
    add.args = {{"value", Ref{p.segments[0].instrs.back().outs[0]}}};
    p.segments[0].instrs.push_back(add);
    reuse_memory(p);
    return is_owned(p.segments[0].instrs.back());
  };
  CHECK(owned("%x = aten::sin(self=%a)\noutput %a\n"));
  CHECK_FALSE(owned("%x = aten::sin(self=%a)\noutput %x\n"));
  // A view of all of it is kept, one of a part, of a sample or spread over memory is not.
  CHECK(owned("%x = aten::sin(self=%a)\n%v = aten::reshape(self=%x, shape=[24])\noutput %a\n"));
  CHECK_FALSE(
      owned("%x = aten::sin(self=%a)\n"
            "%v = aten::narrow(self=%x, dim=0, start=0, length=2)\noutput %a\n"));
  CHECK_FALSE(owned("%v = aten::reshape(self=%a, shape=[24])\noutput %a\n"));
  CHECK_FALSE(
      owned("%x = aten::sum.dim_IntList(self=%a, dim=[0], keepdim=true)\n"
            "%v = aten::expand(self=%x, size=[4, 6], implicit=false)\noutput %a\n"));
}

TEST_CASE("views that change nothing go, and views made twice are one", "[passes]") {
  const auto folded = [](const std::string& body) {
    Program p = program_of("input %a \"a\": float64[4, 6]\n" + body);
    fold_views(p);
    return calls_of(p);
  };
  CHECK(folded("%v = aten::alias(self=%a)\n%s = aten::sin(self=%v)\noutput %s\n") ==
        Calls{"aten::sin"});
  CHECK(folded("%v = aten::reshape(self=%a, shape=[4, 6])\n%s = aten::sin(self=%v)\noutput %s\n") ==
        Calls{"aten::sin"});
  const std::string twice =
      "%u = aten::reshape(self=%a, shape=[24])  -- h.0\n%s = aten::sin(self=%u)  -- h.0\n"
      "%v = aten::reshape(self=%a, shape=[24])  -- h.0\n%t = aten::cos(self=%v)  -- h.0\n"
      "output %s\noutput %t\n";
  CHECK(folded(twice) == Calls{"aten::reshape", "aten::sin", "aten::cos"});
  // Not across blocks, which are to stay alike; nor of other sizes.
  std::string apart = twice;
  apart.replace(apart.rfind("h.0"), 3, "h.1");
  apart.replace(apart.find("%v"), 0, "");
  CHECK(folded("%u = aten::reshape(self=%a, shape=[24])  -- h.0\n%s = aten::sin(self=%u)  -- h.0\n"
               "%v = aten::reshape(self=%a, shape=[24])  -- h.1\n%t = aten::cos(self=%v)  -- h.1\n"
               "output %s\noutput %t\n")
            .size() == 4);
  CHECK(
      folded("%u = aten::reshape(self=%a, shape=[24])\n%v = aten::reshape(self=%a, shape=[8, 3])\n"
             "output %u\noutput %v\n")
          .size() == 2);
  // A call that is no view is made as often as it is called: it may draw.
  CHECK(folded("%u = aten::sin(self=%a)\n%v = aten::sin(self=%a)\noutput %u\noutput %v\n").size() ==
        2);
}

TEST_CASE("a reshape of a reshape looks at what that looks at, unless it may copy", "[passes]") {
  const auto source = [](const std::string& body) {
    Program p = program_of("input %a \"a\": float64[4, 6]\n" + body);
    fold_views(p);
    const Instr& last = p.segments[0].instrs.back();
    return std::get<Ref>(last.args[0].value).id;
  };
  CHECK(
      source("%u = aten::reshape(self=%a, shape=[24])\n%v = aten::reshape(self=%u, shape=[8, 3])\n"
             "output %v\n") == 0);
  CHECK(
      source("%u = aten::reshape(self=%a, shape=[24])\n%v = aten::reshape(self=%u, shape=[8, 3])\n"
             "%x = aten::reshape(self=%v, shape=[3, 8])\noutput %x\n") == 0);
  // What was turned is copied once, not twice.
  CHECK(
      source("%t = aten::transpose.int(self=%a, dim0=0, dim1=1)\n"
             "%u = aten::reshape(self=%t, shape=[24])\n%v = aten::reshape(self=%u, shape=[8, 3])\n"
             "output %v\n") == 2);
}

TEST_CASE("what is made again stands in front of its first reader, as part of that", "[passes]") {
  Program p = program_of(
      "input %a \"a\": float64[4, 6]\n"
      "%x = aten::sin(self=%a)  -- h.0\n%y = aten::cos(self=%x)  -- h.0\n"
      "%r = aten::relu(self=%a)  -- h.1\n%s = aten::mul.Tensor(self=%r, other=%y)  -- h.2\n"
      "%t = aten::mul.Tensor(self=%s, other=%x)  -- h.3\noutput %t\n");
  std::vector<Instr> all = std::move(p.segments[0].instrs);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].node = static_cast<int>(i);
    all[i].loc.line = static_cast<int>(10 + i);
  }
  const int x = all[0].outs[0], y = all[1].outs[0];
  const Remakes calls{{x, all[0]}, {y, all[1]}};
  Segment& later = p.segments[0];
  later.instrs = {all[2], all[3], all[4]};
  read_again(p, calls, later);
  CHECK(calls_of(p) ==
        Calls{"aten::relu", "aten::sin", "aten::cos", "aten::mul.Tensor", "aten::mul.Tensor"});
  for (const size_t i : {1, 2}) {
    const Instr& copy = later.instrs[i];
    CHECK(copy.module == "h.2");
    CHECK(copy.node == 3);
    CHECK(copy.loc.line == 13);
    CHECK(copy.outs[0] > all[4].outs[0]);
    CHECK(p.slot(copy.outs[0]).type == p.slot(i == 1 ? x : y).type);
  }
  const auto read = [&](size_t i, size_t k) { return reads(later.instrs[i]).at(k); };
  CHECK(read(2, 0) == later.instrs[1].outs[0]);
  CHECK(read(3, 1) == later.instrs[2].outs[0]);
  CHECK(read(4, 1) == later.instrs[1].outs[0]);  // made once
  // Nothing to make, nothing changes.
  const std::string before = to_text(p);
  read_again(p, {}, later);
  CHECK(to_text(p) == before);
}
