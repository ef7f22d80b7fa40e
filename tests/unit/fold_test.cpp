// Costs from programs of a few layers, beside those from programs of all of them.
#include "lower/fold.h"

#include <catch2/catch.hpp>
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
  CHECK(folded > 36);  // of 72
}
