// Modules inside hand-written models: seeds of results and gradients of inputs in the program.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "codegen/lua.h"
#include "lower/lower.h"
#include "lower/skeleton.h"
#include "support/graph_text.h"

using namespace nns;

namespace {

// y = relu(x · w), twice returned, beside its largest places and the parameter itself.
graph::Graph two_results() {
  return test::read_graph(R"(
graph "Two" training
  input     %x "x": float64[2, 3] grad
  parameter %w "w": float64[3, 4] grad
  %h = aten::mm(self=%x, mat2=%w)
  %y = aten::relu(self=%h)
  %t = aten::argmax(self=%y, dim=1, keepdim=false)
  output    %y
  output    {"again"=%y, "top"=%t, "w"=%w}
)");
}

lower::Options embedded() {
  lower::Options options;
  options.embedded = true;
  return options;
}

}  // namespace

TEST_CASE("an embedded program takes a seed for every differentiable result") {
  const lower::Program p = lower::lower(two_results(), embedded()).program;
  std::vector<std::string> names;
  for (const auto& [name, slot] : p.seeds) names.push_back(name);
  CHECK(names == std::vector<std::string>{"1", "2.again", "2.w"});
  REQUIRE(p.segments.size() == 2);
  CHECK(p.segments[1].inputs.size() == 3);
  REQUIRE(p.input_gradients.size() == 1);
  CHECK(p.input_gradients[0].first == "x");
  CHECK(p.segments[1].outputs == std::vector<int>{p.input_gradients[0].second});
  CHECK(p.slot(p.input_gradients[0].second).type == TensorType{{2, 3}, DType::f64});
  int sums = 0;  // the product's and that of the parameter as a result
  for (const auto& instr : p.segments[1].instrs)
    sums += instr.kind == lower::InstrKind::accumulate ? 1 : 0;
  CHECK(sums == 2);
  const std::string text = codegen::to_lua(p);
  CHECK(text.find("seed[1]") != std::string::npos);
  CHECK(text.find("return { ['x'] = ") != std::string::npos);
}

TEST_CASE("inputs that want no gradient get none") {
  graph::Graph g = two_results();
  g.values[0].requires_grad = false;
  const lower::Program p = lower::lower(g, embedded()).program;
  CHECK(p.input_gradients.empty());
  CHECK(p.segments[1].outputs.empty());
}

TEST_CASE("stages of an embedded program: seeds in the last, gradients where inputs are read") {
  const graph::Graph g = test::read_graph(R"(
graph "Chain" training
  input     %x "x": float64[2, 3] grad
  input     %z "z": float64[2, 4] grad
  parameter %w "w": float64[3, 4] grad
  %h = aten::mm(self=%x, mat2=%w)
  %y = aten::mul.Tensor(self=%h, other=%z)
  output    %y
)");
  auto plan = std::make_shared<plan::Plan>();
  plan->plan_ngpus = plan->runtime_ngpus = 2;
  plan->stages = 2;
  plan->stage_devices = {{0}, {1}};
  plan->structure = graph::structure_hash(g);
  for (const auto& n : g.nodes)
    plan->ops.push_back({{n.module, n.op, n.ordinal}, {}, {n.id}, n.id});
  lower::Options options = embedded();
  options.plan = plan;
  plan->schedule = "1f1b";
  CHECK_THROWS_WITH(lower::lower(g, options),
                    Catch::Contains("[lower.stages] the plan of Chain has 2 stages under schedule "
                                    "'1f1b'; expected 'gpipe'"));
  plan->schedule = "gpipe";
  plan->micro_batches = 2;
  const lower::Skeleton skeleton(std::make_shared<const graph::Graph>(g), options);
  CHECK(skeleton.check());
  const lower::Program first = skeleton.project(0).program, last = skeleton.project(1).program;
  CHECK(first.seeds.empty());
  CHECK(first.outputs.empty());
  REQUIRE(last.seeds.size() == 1);
  CHECK(last.seeds[0].first == "1");
  REQUIRE(first.input_gradients.size() == 1);
  CHECK(first.input_gradients[0].first == "x");
  REQUIRE(last.input_gradients.size() == 1);
  CHECK(last.input_gradients[0].first == "z");
}
