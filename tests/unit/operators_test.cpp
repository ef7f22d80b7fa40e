// One operator, told by one record and nothing else, goes all the way: shapes, splits, derivative,
// the programs of two ranks and the text that is generated from them. And what records say of
// schemas, kernels, parts and questions.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "call.h"
#include "codegen/lua.h"
#include "lower/lower.h"
#include "lower/uses.h"
#include "operators/split.h"
#include "plan/builder.h"

using namespace nns;
using namespace nns::operators;
using Catch::Contains;
using graph::Role;
using tests::Call;

namespace {

// y = by · weight · self, one weight per column.
Record scaled() {
  Record r;
  r.name = "tests::scaled";
  r.schema = parse_schema("tests::scaled(Tensor self, Tensor weight, *, float by=1.) -> Tensor");
  r.infer = [](const CallView& call) -> Types {
    if (call.shape("weight") != Shape{call.shape("self").back()})
      call.fail("expected one weight per column");
    return {call.type("self")};
  };
  r.annotations = Texts{"a b, b -> a b"};
  r.flops = [](const CallView& call) {
    return 2.0 * static_cast<double>(numel(call.shape("self")));
  };
  r.derivative = gradient([](Backward& b) {
    const Ref g = b.e.mul(b.grad(), b.real("by", 1));
    if (b.needs("self")) b.give("self", b.e.mul(g, b.in("weight")));
    if (b.needs("weight")) b.give("weight", b.e.mul(g, b.in("self")));
  });
  return r;
}

class Registered {
 public:
  explicit Registered(Record record) { register_record(std::move(record)); }
  ~Registered() { clear_registered(); }
};

// sum(scaled(x, w, by = 3))
std::shared_ptr<const graph::Graph> scaled_sum() {
  auto g = std::make_shared<graph::Graph>();
  g->name = "Scaled";
  g->training = true;
  g->values = {{0, {{4, 6}, DType::f64}, Role::input, false, "x", -1, {}},
               {1, {{6}, DType::f64}, Role::parameter, true, "w", -1, {}},
               {2, {{4, 6}, DType::f64}, Role::activation, true, "", 0, {}},
               {3, {{}, DType::f64}, Role::activation, true, "", 1, {}}};
  g->inputs = {0};
  g->parameters = {1};
  g->nodes.resize(2);
  g->nodes[0].op = "tests::scaled";
  g->nodes[0].args = {{"self", Ref{0}}, {"weight", Ref{1}}, {"by", 3.0}};
  g->nodes[0].outputs = {2};
  g->nodes[1].id = 1;
  g->nodes[1].op = "aten::sum";
  g->nodes[1].args = {{"self", Ref{2}}, {"dtype", {}}};
  g->nodes[1].outputs = {3};
  g->outputs.resize(1);
  g->outputs[0].node = Ref{3};
  return g;
}

const lower::Instr* call_of(const lower::Segment& segment, std::string_view op) {
  for (const lower::Instr& instr : segment.instrs)
    if (instr.op == op) return &instr;
  return nullptr;
}

}  // namespace

TEST_CASE("an operator of one record is inferred, priced and cut") {
  const Registered registered(scaled());
  const Call call = Call("tests::scaled").tensor("self", {4, 6}).tensor("weight", {6});
  CHECK(call.types_text() == "float32[4, 6]");
  CHECK(flops(call.view()) == 48);
  CHECK(bytes(call.view()) == 4 * (24 + 6 + 24));
  CHECK(bind(call.view())->transform_space().size() == 3);
  CHECK_THAT(Call("tests::scaled").tensor("self", {4, 6}).tensor("weight", {4}).failure(),
             Contains("[annotate.scaled] expected one weight per column"));
}

TEST_CASE("an operator of one record is differentiated and generated") {
  const Registered registered(scaled());
  const lower::Lowered lowered = lower::lower(*scaled_sum());
  CHECK(lowered.fallbacks.empty());
  const lower::Program& p = lowered.program;
  REQUIRE(p.segments.size() == 2);
  REQUIRE(call_of(p.segments[0], "tests::scaled") != nullptr);
  // d w = Σ over rows of 3 · x, handed to the parameter.
  const lower::Instr* sum = call_of(p.segments[1], "aten::sum.dim_IntList");
  REQUIRE(sum != nullptr);
  CHECK(p.slot(sum->outs[0]).type == TensorType{{6}, DType::f64});
  const std::string text = codegen::to_lua(p);
  CHECK_THAT(text, Contains("tests.scaled(") && Contains("{ by = 3 })"));
}

TEST_CASE("an operator of one record runs cut on two ranks") {
  const Registered registered(scaled());
  const auto graph = scaled_sum();
  for (const int dim : {0, 1}) {
    plan::Builder builder(graph, 2, 2);
    for (const int node : {0, 1}) {
      builder.partition(node, 0, dim, 2);
      builder.assign(node, {0, 1});
    }
    lower::Options options;
    options.plan = std::make_shared<const plan::Plan>(builder.finish("hand"));
    for (options.rank = 0; options.rank < 2; ++options.rank) {
      const lower::Program p = lower::lower(*graph, options).program;
      const lower::Instr* call = call_of(p.segments[0], "tests::scaled");
      REQUIRE(call != nullptr);
      CHECK(p.slot(call->outs[0]).type.shape == (dim == 0 ? Shape{2, 6} : Shape{4, 3}));
      // Rows apart, each rank has an addend of the gradient; columns apart, its own columns of it.
      CHECK(p.shares.at(0).reduce == (dim == 0 ? std::vector<int>{0, 1} : std::vector<int>{}));
    }
  }
}

TEST_CASE("a record is refused under a name that is taken or is none") {
  Record taken = scaled();
  taken.name = "aten::linear";
  CHECK_THROWS_WITH(register_record(taken), Contains("aten::linear is an operator of the table"));
  taken.name = "scaled";
  CHECK_THROWS_WITH(register_record(taken), Contains("expected 'library::operator'"));
}

TEST_CASE("a schema is read as LibTorch writes it") {
  const Schema s = parse_schema(
      "x::y.z(Tensor(a!) self, int[] size=[0, 1], *, str how=\"a, b\", Tensor? t=None, bool "
      "b=True, "
      "float eps=1.0000000000000001e-05) -> Tensor(a!)");
  REQUIRE(s.parameters.size() == 6);
  CHECK(s.parameters[0].written);
  CHECK_FALSE(s.parameters[0].otherwise);
  CHECK(is_default(s.parameters[1], Shape{0, 1}));
  CHECK_FALSE(s.parameters[1].keyword_only);
  CHECK(s.parameters[2].keyword_only);
  CHECK(is_default(s.parameters[2], std::string("a, b")));
  CHECK(is_default(s.parameters[3], {}));
  CHECK(is_default(s.parameters[3], Ref{}));
  CHECK_FALSE(is_default(s.parameters[3], Ref{2}));
  CHECK(is_default(s.parameters[4], true));
  CHECK(is_default(s.parameters[5], 1e-5));
  CHECK_FALSE(s.returns_list);
  CHECK(parse_schema("a::b(Tensor(a) self, int n) -> Tensor(a)[]").returns_list);
  CHECK(schema_of("aten::add.Tensor")->find("alpha")->keyword_only);
  CHECK_FALSE(schema_of("aten::linalg_cross")->find("other")->keyword_only);
  CHECK(schema_of("aten::linalg_cross")->find("dim")->keyword_only);
  CHECK(schema_of("aten::unbind.int")->returns_list);
  CHECK(schema_of("comm::all_reduce")->find("reduce")->keyword_only);
  CHECK(schema_of("aten::no_such_thing") == nullptr);
  CHECK(is_in_place("aten::add_.Tensor"));
  CHECK_FALSE(is_in_place("aten::add.Tensor"));
  CHECK_FALSE(is_in_place("aten::__and__.Tensor"));
}

TEST_CASE("every schema can be read, and every record has one") {
  const auto lines = schema_lines();
  CHECK(lines.size() > 1500);
  CHECK(std::is_sorted(lines.begin(), lines.end()));
  for (const std::string_view line : lines) {
    INFO(line);
    CHECK_NOTHROW(parse_schema(line));
  }
  for (const Record* record : all_records()) {
    if (record->answer != Answer::tensors) continue;  // some are TorchScript's own
    INFO(record->name);
    const std::string prefix = record->name + ".";
    const bool overloaded = std::any_of(lines.begin(), lines.end(), [&](std::string_view line) {
      return line.starts_with(prefix);
    });
    CHECK((schema_of(record->name) != nullptr || overloaded));
  }
}

TEST_CASE("which calls have effects, memory and groups of their own") {
  const auto instr = [](const char* op) {
    lower::Instr i;
    i.op = op;
    i.args = {{"self", Ref{0}}, {"group", Shape{0, 1}}};
    return i;
  };
  for (const char* op : {"comm::send", "comm::receive", "comm::move", "comm::rotate",
                         "comm::zigzag", "comm::exchange_rows", "hook::before"})
    CHECK(lower::has_effect(instr(op)));
  for (const char* op : {"comm::all_reduce", "aten::add.Tensor", "vjp::aten::mm", "x::y"})
    CHECK_FALSE(lower::has_effect(instr(op)));
  for (const char* op : {"comm::all_gather", "aten::mm", "aten::gelu_backward"})
    CHECK(lower::makes_memory(instr(op)));
  for (const char* op : {"aten::t", "aten::to.dtype", "vjp::aten::mm", "x::y"})
    CHECK_FALSE(lower::makes_memory(instr(op)));
  CHECK(lower::is_collective(instr("comm::all_reduce")));
  CHECK_FALSE(lower::is_collective(instr("comm::value_chunk")));
  CHECK_FALSE(lower::is_collective(instr("comm::send")));
}

TEST_CASE("what a record says of shapes and data") {
  const Call tensor = Call("aten::size").tensor("self", {4, 6});
  CHECK(find("aten::size")->ask(tensor.view()) == Arg(Shape{4, 6}));
  CHECK(find("aten::size.int")
            ->ask(Call("aten::size.int").tensor("self", {4, 6}).arg("dim", int64_t{-1}).view()) ==
        Arg(int64_t{6}));
  CHECK(find("aten::item")->answer == Answer::data);
  const auto why = [](const Call& call) { return find(call.op)->depends_on_data(call.view()); };
  CHECK(why(Call("aten::nonzero").tensor("self", {4})).has_value());
  CHECK(why(Call("aten::where").tensor("condition", {4}, DType::boolean)).has_value());
  CHECK_FALSE(why(Call("aten::where.self")
                      .tensor("condition", {4}, DType::boolean)
                      .tensor("self", {4})
                      .tensor("other", {4})));
  CHECK(why(Call("aten::one_hot").tensor("self", {4}, DType::i64)) == "without num_classes");
}

TEST_CASE("what results keep of a buffer among their operands") {
  // The buffer is `self` (of batch_norm: running_mean).
  const auto kept = [](const Call& call, size_t i = 0) {
    return find(call.op)->keeps(call.view(), i, [](std::string_view name) {
      return std::optional(name == "self" || name == "running_mean" ? 1.0 : 0.0);
    });
  };
  const Call norm = Call("aten::batch_norm")
                        .tensor("input", {4, 3})
                        .tensor("running_mean", {3})
                        .tensor("running_var", {3})
                        .arg("training", true)
                        .arg("momentum", 0.25);
  CHECK_FALSE(kept(norm, 0));
  CHECK(kept(norm, 1) == 0.75);
  CHECK(kept(norm, 2) == 0);
  const Call lerp = Call("aten::lerp.Scalar").tensor("self", {3}).tensor("end", {3});
  CHECK(kept(Call(lerp).arg("weight", 0.25)) == 0.75);
  CHECK_FALSE(kept(Call(lerp).tensor("weight", {3})));
  const Call mul = Call("aten::mul").tensor("self", {3});
  CHECK(kept(Call(mul).arg("other", 0.5)) == 0.5);
  CHECK_FALSE(kept(Call(mul).tensor("other", {3})));
  const Call rsub = Call("aten::rsub.Tensor").tensor("self", {3}).tensor("other", {3});
  CHECK(kept(Call(rsub).arg("alpha", 2.0)) == -2);
  const Call add = Call("aten::add.Tensor").tensor("self", {3}).tensor("other", {3});
  CHECK(kept(Call(add).arg("alpha", 2.0)) == 1);
  CHECK(kept(Call("aten::div").tensor("self", {3}).arg("other", 4.0)) == 0.25);
}
