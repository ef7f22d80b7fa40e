// Plans: text and JSON forms, and matching onto graphs.
#include "plan/plan.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace nns;
using namespace nns::plan;

namespace {

graph::Graph two_linears(const std::string& second = "aten::gelu") {
  graph::Graph g;
  g.name = "Two";
  g.values = {{0, {{4, 8}, DType::f32}, graph::Role::input, false, "x", -1, {}},
              {1, {{4, 8}, DType::f32}, graph::Role::activation, true, "", 0, {}},
              {2, {{4, 8}, DType::f32}, graph::Role::activation, true, "", 1, {}}};
  g.inputs = {0};
  graph::Node a, b;
  a.id = 0;
  a.op = "aten::relu";
  a.args = {{"self", graph::ValueRef{0}}};
  a.outputs = {1};
  a.module = "fc";
  b.id = 1;
  b.op = second;
  b.args = {{"self", graph::ValueRef{1}}};
  b.outputs = {2};
  b.module = "proj";
  g.nodes = {a, b};
  return g;
}

Plan plan_for(const graph::Graph& g) {
  Plan p;
  p.policy = "hand";
  p.plan_ngpus = 2;
  p.runtime_ngpus = 4;
  p.stage_devices = {{0, 1}};
  p.structure = graph::structure_hash(g);
  for (const auto& n : g.nodes)
    p.ops.push_back({{n.module, n.op, n.ordinal}, {{0, 1, 2, false}}, {0, 1}, 0, -1});
  return p;
}

}  // namespace

TEST_CASE("a plan survives its JSON form") {
  const auto g = two_linears();
  Plan p = plan_for(g);
  p.stages = 2;
  p.stage_devices = {{0}, {1}};
  p.weights = WeightHome::sharded;
  const Plan q = from_json(to_json(p));
  CHECK(to_json(q) == to_json(p));
  CHECK(hash(q) == hash(p));
  CHECK(q.ops == p.ops);
}

TEST_CASE("a plan is refused for another graph with the first difference") {
  const Plan p = plan_for(two_linears());
  CHECK_THROWS_WITH(
      match(p, two_linears("aten::silu")),
      Catch::Contains("operator 1 is proj aten::gelu#0 in the plan, proj aten::silu#0"));
}

TEST_CASE("an operator that the plan does not know inherits its producer's entry") {
  auto g = two_linears("aten::silu");
  g.training = false;
  const Plan p = plan_for(two_linears());
  const auto fitted = fit(p, g);
  REQUIRE(fitted.ops.size() == 2);
  CHECK(fitted.ops[1].devices == p.ops[0].devices);
  CHECK(fitted.ops[1].steps == p.ops[0].steps);
  CHECK(fitted.ops[1].stage == p.ops[0].stage);
  REQUIRE(fitted.notes.size() == 1);
  CHECK_THAT(fitted.notes[0], Catch::Contains("proj aten::silu#0 is not in the plan"));
}

TEST_CASE("malformed plans are refused") {
  const std::string good = to_json(plan_for(two_linears()));
  CHECK_THROWS_WITH(from_json("{"), Catch::Contains("[plan.load] malformed plan"));
  CHECK_THROWS_WITH(from_json("{}"), Catch::Contains("[plan.load]"));
  auto broken = [&](const std::string& from, const std::string& to) {
    std::string s = good;
    s.replace(s.find(from), from.size(), to);
    return s;
  };
  CHECK_THROWS_WITH(from_json(broken("\"format\": 1", "\"format\": 9")),
                    Catch::Contains("format 9"));
  CHECK_THROWS_WITH(from_json(broken("\"parts\": 2", "\"parts\": 3")),
                    Catch::Contains("3 parts on 2 devices"));
  CHECK_THROWS_WITH(from_json(broken("\"parts\": 2", "\"parts\": 2, \"sizes\": [8]")),
                    Catch::Contains("1 sizes of 2 parts"));
}

TEST_CASE("a plan fits other shapes") {
  Plan p = plan_for(two_linears());
  auto g = two_linears();
  for (auto& v : g.values) v.type.shape = {4, 7};
  auto fitted = fit(p, g);
  CHECK(fitted.warnings.empty());
  CHECK(fitted.ops[0].steps == std::vector<Step>{{0, 1, 2, true}});
  p.strict = true;
  CHECK_THROWS_WITH(fit(p, g), Catch::Contains("[plan.fit] fc aten::relu#0") &&
                                   Catch::Contains("is 7 long, which 2 does not divide"));
  for (auto& op : p.ops) op.steps[0].uneven = true;  // as asked for: strict takes it
  CHECK(fit(p, g).ops[0].steps[0].uneven);
  p = plan_for(two_linears());
  for (auto& v : g.values) v.type.shape = {4, 1};
  fitted = fit(p, g);
  REQUIRE(fitted.warnings.size() == 2);
  CHECK_THAT(fitted.warnings[0], Catch::Contains("fc aten::relu#0") &&
                                     Catch::Contains("replicated for these shapes") &&
                                     Catch::Contains("too short for 2 parts"));
  CHECK(fitted.ops[0].steps == std::vector<Step>{{-1, 0, 2}});
}

TEST_CASE("parts of given sizes fit the length that they make up") {
  Plan p = plan_for(two_linears());
  auto g = two_linears();
  for (auto& op : p.ops) op.steps = {{0, 1, 2, true, {3, 5}}};
  CHECK(fit(p, g).ops[0].steps == p.ops[0].steps);
  for (auto& v : g.values) v.type.shape = {4, 10};
  const auto fitted = fit(p, g);
  REQUIRE(fitted.warnings.size() == 2);
  CHECK_THAT(fitted.warnings[0], Catch::Contains("sizes 3,5 are not those of 2 parts") &&
                                     Catch::Contains("which is 10 long"));
  CHECK(fitted.ops[0].steps == std::vector<Step>{{-1, 0, 2}});
}

TEST_CASE("an operator that the plan does not know is cut as its operand is") {
  auto g = two_linears("aten::silu");
  g.training = false;
  const auto fitted = fit(plan_for(two_linears()), g);
  CHECK(fitted.ops[1].steps == std::vector<Step>{{0, 1, 2}});
  REQUIRE(fitted.notes.size() == 1);
  CHECK_THAT(fitted.notes[0], Catch::Contains("proj aten::silu#0 is not in the plan"));
  g.nodes[1].op = "aten::softmax.int";  // its dim cannot be cut
  g.nodes[1].args = {{"self", graph::ValueRef{1}}, {"dim", int64_t{1}}, {"dtype", {}}};
  CHECK(fit(plan_for(two_linears()), g).ops[1].steps == std::vector<Step>{{-1, 0, 2}});
}

TEST_CASE("a plan is for its number of devices") {
  const Plan p = plan_for(two_linears());
  CHECK(for_devices(p, 2, 6).units() == 3);
  CHECK_THROWS_WITH(for_devices(p, 4, 4),
                    Catch::Contains("spans 2 devices, compute_config.plan_ngpus is 4"));
  CHECK_THROWS_WITH(for_devices(p, 2, 5), Catch::Contains("expected a multiple"));
}

TEST_CASE("a device that stands in a row runs its parts in turns") {
  OpPlan op;
  op.devices = {0, 1};
  CHECK(op.turns() == 1);
  op.devices = {0, 0, 1, 1};
  CHECK(op.turns() == 2);
  op.devices = {3, 3, 3};
  CHECK(op.turns() == 3);
}
