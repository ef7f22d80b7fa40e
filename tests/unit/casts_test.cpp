// Weights that a program reads in another dtype are cast once a step: under cuts, stages, shards
// and recomputation, with the same results; what of it programs, text, checks and memory say.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "codegen/lua.h"
#include "lower/lower.h"
#include "lower/memory_phases.h"
#include "lower/passes.h"
#include "lower/program_json.h"
#include "lower/uses.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;
using test::GraphPtr;

namespace {

constexpr int kBlocks = 3;

// Blocks h.0 … of linear, relu, linear and relu, and a last layer whose weight is also added to the
// loss in its own dtype; products are bfloat16 as autocast has them, or all is float32.
GraphPtr perceptrons(bool mixed, bool training = true) {
  std::string weights, calls, x = "x";
  const auto linear = [&](const std::string& module, const std::string& name,
                          const std::string& shape) {
    weights += fmt::format("parameter %{0}.weight \"{0}.weight\": float32{1} grad\n", name, shape);
    std::string w = name + ".weight";
    if (mixed) {
      calls += fmt::format("%{0}.c = aten::to.dtype(self=%{0}.weight, dtype=bfloat16)  -- {1}\n",
                           name, module);
      w = name + ".c";
    }
    calls +=
        fmt::format("%{0}.y = aten::linear(input=%{1}, weight=%{2})  -- {3}\n", name, x, w, module);
    x = name + ".y";
  };
  const auto relu = [&](const std::string& module) {
    calls += fmt::format("%{0}r = aten::relu(self=%{0})  -- {1}\n", x, module);
    x += "r";
  };
  if (mixed) {
    calls += "%xc = aten::to.dtype(self=%x, dtype=bfloat16)\n";
    x = "xc";
  }
  for (int i = 0; i < kBlocks; ++i) {
    const std::string h = fmt::format("h.{}", i);
    linear(h + ".fc", h + ".fc", "[8, 6]");
    relu(h);
    linear(h + ".proj", h + ".proj", "[6, 8]");
    relu(h);
  }
  linear("head", "head", "[4, 6]");
  if (mixed) {
    calls += fmt::format("%last = aten::to.dtype(self=%{}, dtype=float32)\n", x);
    x = "last";
  }
  return std::make_shared<const graph::Graph>(test::read_graph(
      fmt::format("graph \"Mixed\" {}\ninput %x \"x\": float32[4, 6]\n{}{}"
                  "%s = aten::sum(self=%{})\n%n = aten::sum(self=%head.weight)\n"
                  "%loss = aten::add.Tensor(self=%s, other=%n, alpha=1)\noutput %loss\n",
                  training ? "training" : "evaluation", weights, calls, x)));
}

struct Way {
  const char* name;
  int devices, units, zero;
  bool cut, stages, again;
};
constexpr Way kWays[] = {
    {"one device", 1, 1, 0, false, false, false},
    {"recomputed", 1, 1, 0, false, false, true},
    {"two units", 1, 2, 0, false, false, false},
    {"gradients in shards", 1, 2, 2, false, false, false},
    {"weights in shards", 1, 2, 3, false, false, false},
    {"weights in shards, recomputed", 1, 2, 3, false, false, true},
    {"cut", 2, 1, 0, true, false, false},
    {"cut, weights in shards", 2, 2, 3, true, false, true},
    {"stages", 2, 1, 0, false, true, false},
    {"stages, weights in shards", 2, 2, 3, false, true, false},
};

std::shared_ptr<const plan::Plan> plan_of(const GraphPtr& graph, const Way& way) {
  plan::Builder b(graph, way.devices, way.devices * way.units);
  std::vector<int> again;
  int cut = -1;
  for (const graph::Node& node : graph->nodes) {
    if (cut < 0 && node.module == "h.2.fc") cut = node.id;
    if (node.module.starts_with("h.1")) again.push_back(node.id);
    const bool linear = node.op == "aten::linear", cast = node.op == "aten::to.dtype";
    if (way.cut && node.module.ends_with(".fc"))
      b.partition(node.id, linear ? 1 : 0, 0, 2);
    else if (way.cut && node.module.ends_with(".proj"))
      b.partition(node.id, linear ? 1 : 0, 1, 2);
    else if (way.cut && node.module.starts_with("h.") && !cast)
      b.replicate(node.id, 2);
    else
      b.replicate(node.id, way.stages ? 1 : way.devices);
  }
  if (way.stages) {
    b.stage({cut}, {{0}, {1}});
    b.schedule("1f1b", 4, 1);
  }
  if (way.again) b.recompute(again);
  b.zero(way.zero);
  return std::make_shared<const plan::Plan>(b.finish("hand"));
}

int casts_in_segments(const Program& p) {
  int n = 0;
  for (const Segment& s : p.segments)
    for (const Instr& instr : s.instrs)
      n += instr.op == "aten::to.dtype" && weight_of(p, reads(instr)[0]) >= 0;
  return n;
}

Program alone(bool training = true, bool embedded = false) {
  const GraphPtr graph = perceptrons(true, training);
  Options options;
  options.embedded = embedded;
  return lower::lower(*graph, options).program;
}

void refuses(const Program& p, const std::string& text) {
  CHECK_THROWS_WITH(check(p), Catch::Contains(text));
}

}  // namespace

TEST_CASE("weights are cast once a step under every plan, with the same results") {
  const GraphPtr mixed = perceptrons(true), plain = perceptrons(false);
  const test::Inputs inputs = test::random_inputs(*mixed, 8, 7);
  const test::Outcome want = test::run(test::lower_all(plain), inputs);
  for (const Way& way : kWays) {
    INFO(way.name);
    const test::Programs programs = test::lower_all(mixed, plan_of(mixed, way));
    const test::Outcome got = test::run(programs, inputs);
    CHECK(test::difference(want, got) == "");
    CHECK(test::miscounted(programs, got) == "");
    CHECK(test::unmeasured(programs, got) == "");
    CHECK(programs.skeleton->check());
    for (const Lowered& made : programs.ranks) {
      const Program& p = made.program;
      // The last layer's weight is gathered in its own dtype, which the loss reads too.
      const bool last = p.segments.back().stage == (way.stages ? 1 : 0) && way.zero == 3;
      CHECK(p.casts.size() == p.parameters.size() - last);
      CHECK(casts_in_segments(p) == 0);
      for (const Instr& instr : p.casts) {
        const Slot &cast = p.slot(instr.outs[0]), &weight = p.slot(reads(instr)[0]);
        CHECK(cast.role == SlotRole::cast);
        CHECK(cast.name == weight.name + "_bfloat16");
        CHECK(cast.type == TensorType{weight.type.shape, DType::bf16});
      }
    }
  }
}

TEST_CASE("weights in shards are gathered after their cast, and again in backward") {
  const GraphPtr graph = perceptrons(true);
  const Program p =
      test::lower_all(graph, plan_of(graph, {"", 1, 2, 3, false, false, false})).ranks[0].program;
  for (const Segment& s : p.segments) {
    INFO(s.name);
    CHECK(s.saved_in.size() + s.saved_out.size() > 0);
    for (const auto* list : {&s.saved_in, &s.saved_out})
      for (int slot : *list) {  // nothing of a weight's shape
        INFO(p.slot(slot).name);
        CHECK(p.slot(slot).type.shape[0] == 4);
      }
    int gathers = 0;
    for (const Instr& instr : s.instrs) {
      if (communication_of(instr) != operators::Communication::all_gather) continue;
      ++gathers;
      const std::string& of = p.slot(reads(instr)[0]).name;
      CHECK(p.slot(instr.outs[0]).type.dtype == (of == "head.weight" ? DType::f32 : DType::bf16));
    }
    CHECK(gathers == 2 * kBlocks + (s.kind == SegmentKind::forward));
    CHECK(s.ahead.size() == s.blocks.size());
  }
  // Gradients are summed in the dtype of the weights.
  for (const Instr& instr : p.segments[1].instrs)
    if (instr.kind == InstrKind::accumulate)
      CHECK(p.slot(reads(instr)[0]).type.dtype == DType::f32);
}

TEST_CASE("parts of a weight are parts of its cast") {
  const auto program = [](const std::string& rows) {
    return test::lower_all(std::make_shared<const graph::Graph>(test::read_graph(
        "graph \"Rows\" training\ninput %x \"x\": float32[4, 6]\n"
        "parameter %w \"w\": float32[8, 6] grad\n"
        "%n = aten::narrow(self=%w, dim=0, start=2, length=4)\n" +
        rows +
        "%y = aten::linear(input=%x, weight=%r)\n%loss = aten::sum(self=%y)\noutput %loss\n")));
  };
  // The interpreter rounds nothing.
  const test::Programs mixed = program(
      "%c = aten::to.dtype(self=%n, dtype=bfloat16)\n%r = aten::to.dtype(self=%c, "
      "dtype=float32)\n");
  const test::Programs plain = program("%r = aten::relu(self=%n)\n");
  const Program& p = mixed.ranks[0].program;
  REQUIRE(p.casts.size() == 1);
  CHECK(p.slot(p.casts[0].outs[0]).type == TensorType{{8, 6}, DType::bf16});
  REQUIRE(p.segments[0].instrs.size() > 2);
  const Instr& part = p.segments[0].instrs[0];
  CHECK(part.op == "aten::narrow");
  CHECK(reads(part) == p.casts[0].outs);
  test::Inputs inputs = test::random_inputs(*mixed.graph, 2, 3);
  for (double& x : inputs.weights.at("w").memory->data) x = std::abs(x);
  const test::Outcome got = test::run(mixed, inputs);
  CHECK(test::difference(test::run(plain, inputs), got) == "");
  CHECK(test::unmeasured(mixed, got) == "");
}

TEST_CASE("casts stand in the text, in JSON and in the file, in a loop over blocks") {
  const Program p = alone();
  CHECK_THAT(to_text(p), Catch::Contains("  once %"));
  const Program again = from_json(to_json(p)).program;
  CHECK(to_text(again) == to_text(p));
  CHECK(hash(again) == hash(p));
  const std::string lua = codegen::to_lua(p, "");
  CHECK_THAT(lua, Catch::Contains(R"(local function casts(p)
  for i = 0, 2 do
    local w = p.h[i]
    w.fc.weight_bfloat16 = aten.to_dtype(w.fc.weight, 'bfloat16')
    w.proj.weight_bfloat16 = aten.to_dtype(w.proj.weight, 'bfloat16')
  end
  p.head.weight_bfloat16 = aten.to_dtype(p.head.weight, 'bfloat16')
end
)"));
  CHECK_THAT(lua, Catch::Contains("w.fc.weight_bfloat16)"));
  CHECK_THAT(lua, Catch::Contains("return { casts = casts, forward = forward,"));
  // Of an evaluation, and of a module in a hand-written model, each call casts by itself.
  for (const Program& own : {alone(false), alone(true, true)}) {
    CHECK(own.casts.empty());
    CHECK(casts_in_segments(own) == 2 * kBlocks + 1);
    CHECK_THAT(codegen::to_lua(own, ""), !Catch::Contains("casts"));
  }
}

TEST_CASE("memory counts casts as long as micro-batches run") {
  const Program p = alone();
  const int64_t casts = bytes_of_casts(p);
  CHECK(casts == 2 * (kBlocks * 96 + 24));
  const MemoryParts parts = memory_parts(p);
  CHECK(parts.casts == casts);
  MemoryParts without = parts;
  without.casts = 0;
  CHECK(memory(parts).peak == memory(without).peak + casts);
  CHECK(course(parts, {{'F', 0, 0}, {'B', 0, 0}}).back().after == casts);
  const std::vector<Action> order{{'F', 0, 0}, {'B', 0, 0}, {'F', 0, 1}, {'B', 0, 1}};
  const Phases told = phases(p, order);
  CHECK(told.forward.activations > casts);
  CHECK(told.step.activations < casts);
}

TEST_CASE("a broken cast is refused") {
  Program p = alone();
  REQUIRE_NOTHROW(check(p));
  SECTION("that is none") {
    p.slots[static_cast<size_t>(p.casts[0].outs[0])].role = SlotRole::activation;
    refuses(p, "makes no cast");
  }
  SECTION("of something else") {
    p.casts[0].args[0].value = Ref{p.segments[0].inputs[0]};
    refuses(p, "which is not a parameter");
  }
  SECTION("twice") {
    p.casts.push_back(p.casts[0]);
    refuses(p, "is made twice");
  }
  SECTION("that nobody makes") {
    p.casts.erase(p.casts.begin());
    refuses(p, "is used before it is made");
  }
  SECTION("that a segment releases") {
    Instr release;
    release.kind = InstrKind::release;
    release.args = {{"", Ref{p.casts[0].outs[0]}}};
    p.segments[0].instrs.push_back(release);
    refuses(p, "is not this segment's to release");
  }
  SECTION("in a file") {
    Program q = p;
    q.casts[0].args[0].value = Ref{q.segments[0].inputs[0]};
    CHECK_THROWS_WITH(from_json(to_json(q)), Catch::Contains("expected parameter"));
  }
}

TEST_CASE("a cast stays where it is if its name is another weight's") {
  const auto graph = std::make_shared<const graph::Graph>(test::read_graph(
      "graph \"Names\" training\ninput %x \"x\": float32[4, 6]\n"
      "parameter %w \"w\": float32[6, 6] grad\n"
      "parameter %v \"w_bfloat16\": float32[6, 6] grad\n"
      "%xc = aten::to.dtype(self=%x, dtype=bfloat16)\n"
      "%wc = aten::to.dtype(self=%w, dtype=bfloat16)\n"
      "%vc = aten::to.dtype(self=%v, dtype=bfloat16)\n"
      "%y = aten::linear(input=%xc, weight=%wc)\n%z = aten::linear(input=%y, weight=%vc)\n"
      "%f = aten::to.dtype(self=%z, dtype=float32)\n%loss = aten::sum(self=%f)\noutput %loss\n"));
  for (const int zero : {plan::Zero::none, plan::Zero::weights}) {
    plan::Builder b(graph, 1, 2);
    for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
    b.zero(zero);
    const auto plan = std::make_shared<const plan::Plan>(b.finish("hand"));
    const test::Programs programs = test::lower_all(graph, plan);
    const Program& p = programs.ranks[0].program;
    REQUIRE(p.casts.size() == 1);
    CHECK(p.slot(p.casts[0].outs[0]).name == "w_bfloat16_bfloat16");
    CHECK(p.slot(reads(p.casts[0])[0]).name == "w_bfloat16");
    check(p);
    const test::Inputs inputs = test::random_inputs(*graph, 2, 3);
    CHECK(test::difference(test::run(test::lower_all(graph), inputs), test::run(programs, inputs),
                           1e-6) == "");
  }
}
