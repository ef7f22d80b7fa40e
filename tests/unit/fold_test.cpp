// Costs from programs of a few layers, beside those from programs of all of them.
#include "lower/fold.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>

#include "lower/skeleton.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;

namespace {

// Where the calls of a model stand in its layers: "aten::linear" in "h.3.fc" is that of "h.*.fc".
std::string name_of(const graph::Node& node) {
  std::string module = node.module;
  if (module.starts_with("h.")) {
    const size_t dot = module.find('.', 2);
    module = "h.*" + (dot == std::string::npos ? "" : module.substr(dot));
  }
  return fmt::format("{} {} {}", module, node.op, node.ordinal);
}

int layer_of(const graph::Node& node) {
  return node.module.starts_with("h.") ? std::stoi(node.module.substr(2)) : -1;
}

// A plan that cuts all layers alike, with stages that begin at layers.
struct Random {
  std::mt19937 random;

  plan::Plan plan(const test::GraphPtr& graph, int layers, int ranks, int width, int units) {
    plan::Builder builder(graph, ranks * width, ranks * width * units);
    const int stages = ranks;
    if (ranks > 1) {
      std::vector<int> first, begins;
      for (int s = 1; s < stages; ++s) begins.push_back(s * layers / stages);
      for (const graph::Node& node : graph->nodes)
        if (first.size() < begins.size() && layer_of(node) == begins[first.size()])
          first.push_back(node.id);
      std::vector<std::vector<int>> devices;
      for (int s = 0; s < stages; ++s) {
        devices.emplace_back();
        for (int d = 0; d < width; ++d) devices.back().push_back(s * width + d);
      }
      builder.stage(first, devices);
    }
    std::map<std::string, uint32_t> chosen;
    const bool again = random() % 2 == 0;
    const int until = static_cast<int>(random() % static_cast<uint32_t>(layers + 1));
    std::map<int, std::vector<int>> groups;
    for (const graph::Node& node : graph->nodes) {
      const uint32_t choice = chosen.try_emplace(name_of(node), random()).first->second;
      const auto places = builder.choices(node.id);
      const auto& place = places.empty() ? annotate::Place{} : places[choice % places.size()];
      if (width > 1 && !places.empty() && choice % 4 != 0 &&
          !builder.refusal(node.id, place.input, place.dim, width))
        builder.partition(node.id, place.input, place.dim, width);
      else
        builder.replicate(node.id, width);
      if (again && layer_of(node) >= 0 && layer_of(node) < until)
        groups[layer_of(node)].push_back(node.id);
    }
    for (const auto& [layer, nodes] : groups) builder.recompute(nodes);
    builder.schedule(ranks > 1 && random() % 2 == 0 ? "zb_h1" : "1f1b", 4, 1);
    if (units > 1) builder.zero(static_cast<int>(random() % 4));
    return builder.finish("test");
  }
};

}  // namespace

TEST_CASE("few layers tell what many cost", "[lower]") {
  constexpr int kLayers = 14;
  Random make{std::mt19937(3)};
  cost::Hardware on = cost::find_hardware("h100");
  on.start = 1e-9;
  on.half_filled = 16;
  lower::StepSettings settings;
  settings.micro_batches = 4;
  settings.bucket_bytes = 1 << 20;
  int folded = 0;
  for (const auto& [name, graph] : {std::pair{"alike", test::alike(kLayers)},
                                    std::pair{"perceptrons", test::perceptrons(kLayers)},
                                    std::pair{"transformer", test::transformer(kLayers)}}) {
    const lower::Fold fold(graph);
    for (int trial = 0; trial < 24; ++trial) {
      const int ranks = 1 + trial % 2, width = trial / 2 % 2 + 1, units = trial / 4 % 2 + 1;
      const auto plan = make.plan(graph, kLayers, ranks, width, units);
      INFO(name << ", trial " << trial << "\n" << plan::to_text(plan));
      lower::Options options;
      const int64_t before = lower::count_lowerings();
      const auto few = fold.simulate(plan, options, on, settings);
      const int64_t lowered = lower::count_lowerings() - before;
      options.plan = std::make_shared<const plan::Plan>(plan);
      const auto all = lower::simulate(lower::Skeleton(graph, options), plan, on, settings);
      CHECK(few.seconds == Approx(all.seconds).epsilon(1e-9));
      CHECK(few.once.sum == Approx(all.once.sum).epsilon(1e-9));
      CHECK(few.forward.work == Approx(all.forward.work).epsilon(1e-9));
      CHECK(few.backward.communication == Approx(all.backward.communication).epsilon(1e-9));
      CHECK(few.resting == all.resting);
      CHECK(few.saved == all.saved);
      CHECK(few.total == all.total);
      folded += lowered > static_cast<int64_t>(all.ranks.size());
    }
  }
  CHECK(folded == 43);  // of 72
}

namespace {

constexpr int kLayers = 20, kOdd = 8;

graph::Node& node_of(graph::Graph& graph, int layer, const std::string& op) {
  for (graph::Node& node : graph.nodes)
    if (layer_of(node) == layer && node.op.starts_with(op)) return node;
  throw std::logic_error("no such call");
}

// What a call is given as this argument.
int& operand(graph::Node& node, const std::string& name) {
  for (graph::NamedArg& arg : node.args)
    if (arg.name == name) return std::get<graph::ValueRef>(arg.value).id;
  throw std::logic_error("no such argument");
}

struct Given {
  graph::Graph graph;
  plan::Plan plan;

  std::vector<plan::OpPlan*> layer(int number) {
    std::vector<plan::OpPlan*> out;
    for (const graph::Node& node : graph.nodes)
      if (layer_of(node) == number) out.push_back(&plan.ops[static_cast<size_t>(node.id)]);
    return out;
  }
};

// Programs that are lowered for the cost of a plan of equal layers on one device after `change`.
// Once: all of it. Twice: with three layers and with four. Once more for each further length.
int64_t lowerings(const std::function<void(Given&)>& change) {
  const auto graph = test::transformer(kLayers);
  plan::Builder builder(graph, 1, 2);
  for (const graph::Node& node : graph->nodes) builder.replicate(node.id, 1);
  builder.zero(1);
  Given given{*graph, builder.finish("test")};
  change(given);
  given.plan.structure = graph::structure_hash(given.graph);
  const auto changed = std::make_shared<const graph::Graph>(given.graph);
  const cost::Hardware on = cost::find_hardware("h100");
  lower::Options options;
  const int64_t before = lower::count_lowerings();
  const auto few = lower::Fold(changed).simulate(given.plan, options, on, {});
  const int64_t lowered = lower::count_lowerings() - before;
  options.plan = std::make_shared<const plan::Plan>(given.plan);
  const auto all = lower::simulate(lower::Skeleton(changed, options), given.plan, on, {});
  CHECK(few.seconds == Approx(all.seconds).epsilon(1e-9));
  CHECK(few.saved == all.saved);
  return lowered;
}

}  // namespace

TEST_CASE("a layer that differs ends a row of equal ones", "[lower]") {
  CHECK(lowerings([](Given&) {}) == 2);
  // The row falls into one of seven, since the first layer follows something else, and one of
  // eleven.
  const std::map<std::string, std::function<void(Given&)>> changes = {
      {"a number",
       [](Given& g) {
         for (graph::NamedArg& arg : node_of(g.graph, kOdd, "aten::layer_norm").args)
           if (arg.name == "eps") arg.value = 0.5;
       }},
      {"a name", [](Given& g) { node_of(g.graph, kOdd, "aten::gelu").module += ".other"; }},
      {"a weight that is not trained",
       [](Given& g) {
         const int weight = operand(node_of(g.graph, kOdd, "aten::linear"), "weight");
         g.graph.values[static_cast<size_t>(weight)].requires_grad = false;
       }},
      {"a region that is computed again",
       [](Given& g) { node_of(g.graph, kOdd, "aten::gelu").context.recompute_region = 0; }},
      {"stays on the host",
       [](Given& g) {
         for (plan::OpPlan* op : g.layer(kOdd)) op->offload = true;
       }},
      {"computed again by plan",
       [](Given& g) {
         for (plan::OpPlan* op : g.layer(kOdd)) op->recompute = 0;
       }},
      {"states that rest elsewhere",
       [](Given& g) {
         const int weight = operand(node_of(g.graph, kOdd, "aten::linear"), "weight");
         g.plan.zero.levels[g.graph.value({weight}).name] = 0;
       }},
      {"states that one rank keeps",
       [](Given& g) {
         const int weight = operand(node_of(g.graph, kOdd, "aten::linear"), "weight");
         g.plan.zero.whole.insert(g.graph.value({weight}).name);
       }},
  };
  for (const auto& [what, change] : changes) {
    INFO(what);
    CHECK(lowerings(change) == 3);
  }
}

TEST_CASE("layers computed again fold where each is a group of its own", "[lower]") {
  const auto groups_of = [](int width) {
    return [width](Given& g) {
      for (int layer = 0; layer < kLayers; ++layer)
        for (plan::OpPlan* op : g.layer(layer)) op->recompute = layer / width;
    };
  };
  CHECK(lowerings(groups_of(1)) == 2);
  CHECK(lowerings(groups_of(2)) == 1);
  CHECK(lowerings(groups_of(kLayers)) == 1);  // one group of all
}

TEST_CASE("a layer whose result is read far away is no part of a row", "[lower]") {
  const auto also_an_output = [](Given& g) {
    const int id = node_of(g.graph, kOdd, "aten::gelu").outputs[0];
    g.graph.outputs.emplace_back();
    g.graph.outputs.back().node = graph::ValueRef{id};
  };
  CHECK(lowerings(also_an_output) == 3);
  const auto shared = [](Given& g) {
    const int weight = operand(node_of(g.graph, kOdd, "aten::linear"), "weight");
    operand(node_of(g.graph, kLayers - 1, "aten::linear"), "weight") = weight;
  };
  // Both layers that share it differ: rows of seven and ten.
  CHECK(lowerings(shared) == 3);
}
