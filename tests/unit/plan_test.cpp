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
  p.structure = graph::structure_hash(g);
  for (const auto& n : g.nodes)
    p.ops.push_back({{n.module, n.op, n.ordinal}, {{0, 1, 2}}, {0, 1}, 0, -1});
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
  std::vector<int> inherited;
  const auto entries = match(p, g, &inherited);
  REQUIRE(entries.size() == 2);
  CHECK(entries[1] == &p.ops[0]);
  CHECK(inherited == std::vector<int>{1});
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
}
