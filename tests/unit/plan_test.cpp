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
  p.zero.level = Zero::weights;
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
  CHECK(fitted.ops[1].cuts == p.ops[0].cuts);
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
  CHECK_THROWS_WITH(from_json(broken("\"format\": 2", "\"format\": 9")),
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
  CHECK(fitted.ops[0].cuts == std::vector<Cut>{{0, 1, 2, true}});
  p.strict = true;
  CHECK_THROWS_WITH(fit(p, g), Catch::Contains("[plan.fit] fc aten::relu#0") &&
                                   Catch::Contains("is 7 long, which 2 does not divide"));
  for (auto& op : p.ops) op.cuts[0].uneven = true;  // as asked for: strict takes it
  CHECK(fit(p, g).ops[0].cuts[0].uneven);
  p = plan_for(two_linears());
  for (auto& v : g.values) v.type.shape = {4, 1};
  fitted = fit(p, g);
  REQUIRE(fitted.warnings.size() == 2);
  CHECK_THAT(fitted.warnings[0], Catch::Contains("fc aten::relu#0") &&
                                     Catch::Contains("replicated for these shapes") &&
                                     Catch::Contains("too short for 2 parts"));
  CHECK(fitted.ops[0].cuts == std::vector<Cut>{{-1, 0, 2}});
}

TEST_CASE("parts of given sizes fit the length that they make up") {
  Plan p = plan_for(two_linears());
  auto g = two_linears();
  for (auto& op : p.ops) op.cuts = {{0, 1, 2, true, {3, 5}}};
  CHECK(fit(p, g).ops[0].cuts == p.ops[0].cuts);
  for (auto& v : g.values) v.type.shape = {4, 10};
  const auto fitted = fit(p, g);
  REQUIRE(fitted.warnings.size() == 2);
  CHECK_THAT(fitted.warnings[0], Catch::Contains("sizes 3,5 are not those of 2 parts") &&
                                     Catch::Contains("which is 10 long"));
  CHECK(fitted.ops[0].cuts == std::vector<Cut>{{-1, 0, 2}});
}

TEST_CASE("an operator that the plan does not know is cut as its operand is") {
  auto g = two_linears("aten::silu");
  g.training = false;
  const auto fitted = fit(plan_for(two_linears()), g);
  CHECK(fitted.ops[1].cuts == std::vector<Cut>{{0, 1, 2}});
  REQUIRE(fitted.notes.size() == 1);
  CHECK_THAT(fitted.notes[0], Catch::Contains("proj aten::silu#0 is not in the plan"));
  g.nodes[1].op = "aten::softmax.int";  // its dim cannot be cut
  g.nodes[1].args = {{"self", graph::ValueRef{1}}, {"dim", int64_t{1}}, {"dtype", {}}};
  CHECK(fit(plan_for(two_linears()), g).ops[1].cuts == std::vector<Cut>{{-1, 0, 2}});
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

namespace {

// A chain x → op0 → op1 → …, each with a weight of its own where `weights` says so.
graph::Graph chain(const std::vector<std::string>& modules, const std::vector<bool>& weights,
                   bool training = true) {
  graph::Graph g;
  g.name = "Chain";
  g.training = training;
  const TensorType type{{4, 4}, DType::f32};
  g.values.push_back({0, type, graph::Role::input, false, "x", -1, {}});
  g.inputs = {0};
  int before = 0;
  std::map<std::string, int> leaves;
  for (size_t i = 0; i < modules.size(); ++i) {
    graph::Node n;
    n.id = static_cast<int>(i);
    n.module = modules[i];
    n.op = weights[i] ? "aten::mm" : "aten::relu";
    n.args = {{"self", graph::ValueRef{before}}};
    for (size_t k = 0; k < i; ++k) n.ordinal += modules[k] == n.module && weights[k] == weights[i];
    if (weights[i]) {
      const std::string name = modules[i] + ".weight";
      if (!leaves.contains(name)) {
        leaves[name] = static_cast<int>(g.values.size());
        g.values.push_back({leaves[name], type, graph::Role::parameter, true, name, -1, {}});
        g.parameters.push_back(leaves[name]);
      }
      n.args.push_back({"mat2", graph::ValueRef{leaves[name]}});
    }
    before = static_cast<int>(g.values.size());
    n.outputs = {before};
    g.values.push_back({before, type, graph::Role::activation, true, "", n.id, {}});
    g.nodes.push_back(n);
  }
  g.outputs = {{graph::ValueRef{before}}};
  return g;
}

// One operator a stage, on a device of its own.
Plan staged(const graph::Graph& g) {
  Plan p;
  p.policy = "hand";
  p.structure = graph::structure_hash(g);
  p.stages = p.plan_ngpus = p.runtime_ngpus = static_cast<int>(g.nodes.size());
  p.stage_devices.clear();
  for (const auto& n : g.nodes) {
    p.ops.push_back({{n.module, n.op, n.ordinal}, {{-1, 0, 1}}, {n.id}, n.id, -1});
    p.stage_devices.push_back({n.id});
  }
  return p;
}

std::vector<int> stages_of(const Fitted& fitted) {
  std::vector<int> out;
  for (const OpPlan& op : fitted.ops) {
    CHECK(op.devices == std::vector<int>{op.stage});
    out.push_back(op.stage);
  }
  return out;
}

}  // namespace

TEST_CASE("operators of another graph lie between their operands and readers") {
  // Training ends with the operator of the root that evaluation begins with.
  const auto first = chain({"a", "b", "c", ""}, {true, true, true, false});
  const Plan p = staged(first);
  const auto fitted = fit(p, first);
  CHECK(stages_of(fitted) == std::vector<int>{0, 1, 2, 3});
  const auto other = chain({"a", "", "b", "c"}, {true, false, true, true}, false);
  CHECK(stages_of(fit(p, other, &fitted.rests)) == std::vector<int>{0, 0, 1, 2});
  // Fewer, more, and calls again where the weights are.
  CHECK(stages_of(fit(p, chain({"a", "c"}, {true, true}, false), &fitted.rests)) ==
        std::vector<int>{0, 2});
  CHECK(stages_of(fit(p, chain({"a", "a", "b", "b", ""}, {true, true, true, true, false}, false),
                      &fitted.rests)) == std::vector<int>{0, 0, 1, 1, 3});
  CHECK_FALSE(carry(p, other, fitted.rests));
}

TEST_CASE("a weight that is read in a later stage is handed on") {
  const auto first = chain({"a", "b", "c"}, {true, true, true});
  const Plan p = staged(first);
  const auto rests = fit(p, first).rests;
  CHECK(rests.at("b.weight") == std::set<int>{1});
  const auto other = chain({"c", "a", "b"}, {true, true, true}, false);
  const auto carried = carry(p, other, rests);
  REQUIRE(carried);
  graph::verify(*carried);
  REQUIRE(carried->nodes.size() == 5);
  const auto fitted = fit(p, *carried, &rests);
  std::map<std::string, int> stages;
  for (size_t i = 0; i < fitted.ops.size(); ++i)
    stages[carried->nodes[i].module] = fitted.ops[i].stage;
  // Each weight leaves from where it rests, and all is computed where the first operator is.
  CHECK(stages ==
        std::map<std::string, int>{{"a.weight", 0}, {"b.weight", 1}, {"a", 2}, {"b", 2}, {"c", 2}});
  CHECK_FALSE(carry(p, *carried, rests));
}

TEST_CASE("no plan of another graph sends a value back") {
  // All orders of four weights, each read up to twice.
  const auto first = chain({"a", "b", "c", "d"}, {true, true, true, true});
  const Plan p = staged(first);
  const auto rests = fit(p, first).rests;
  const std::string names[] = {"a", "b", "c", "d"};
  for (int code = 0; code < 256; ++code) {
    std::vector<std::string> modules;
    for (int k = 0; k < 4; ++k) modules.push_back(names[(code >> (2 * k)) & 3]);
    const auto other = chain(modules, {true, true, true, true}, code % 2 == 0);
    const auto carried = carry(p, other, rests);
    const graph::Graph& g = carried ? *carried : other;
    const auto fitted = fit(p, g, &rests);
    for (const auto& n : g.nodes)
      for (int id : graph::inputs_of(n)) {
        const auto& value = g.value({id});
        const int stage = fitted.ops[static_cast<size_t>(n.id)].stage;
        if (value.producer >= 0)
          CHECK(fitted.ops[static_cast<size_t>(value.producer)].stage <= stage);
        if (value.role == graph::Role::parameter) CHECK(rests.at(value.name).contains(stage));
      }
  }
}

TEST_CASE("what reads a buffer that is written runs where it is written") {
  auto g = chain({"a", "b", "c"}, {true, true, true});
  g.values[1].role = graph::Role::buffer;  // a.weight, new content made by the last operator
  g.values[1].requires_grad = false;
  g.parameters.erase(g.parameters.begin());
  g.buffers = {1};
  g.buffer_updates = {{1, g.nodes[2].outputs[0]}};
  const Plan p = staged(g);
  const auto fitted = fit(p, g);
  CHECK(fitted.rests.at("a.weight") == std::set<int>{2});
  CHECK(fitted.ops[0].stage == 2);
  // What reads it feeds a weight of an earlier stage: no stage can hold it.
  g.buffer_updates = {{1, g.nodes[2].outputs[0]}};
  auto rests = fitted.rests;
  rests["b.weight"] = {1};
  rests["a.weight"] = {0};
  CHECK_THROWS_WITH(fit(p, g, &rests), Catch::Contains("[plan.buffer] a.weight is written in "));
}

TEST_CASE("a plan knows a graph by module and operator") {
  const auto first = chain({"a", "b"}, {true, true});
  const Plan p = staged(first);
  CHECK(knows(p, chain({"a", "a", "b"}, {true, true, true})));
  CHECK_FALSE(knows(p, chain({"a", "b", "b"}, {true, true, false})));
  CHECK(with_operators(p, p)->ops == p.ops);
  Plan wide = p;
  wide.stage_devices = {{1}, {0}};
  CHECK_FALSE(with_operators(p, wide));
}
