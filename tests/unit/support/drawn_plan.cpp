// Plans drawn at random.
#include "support/drawn_plan.h"

#include <algorithm>
#include <set>

#include "plan/builder.h"

namespace nns::test {
namespace {

using plan::Builder;

// Cuts a node over `parts` devices in one or two steps, or copies it.
void cut_node(Builder& b, int node, int parts, const Draw& draw) {
  std::vector<int> steps{parts};
  if (parts == 4 && draw(0, 2) == 0) steps = {2, 2};
  for (int step : steps) {
    const auto choices = b.choices(node);
    bool done = false;
    for (int tries = 0; tries < 3 && !done && !choices.empty() && draw(0, 4) > 0; ++tries) {
      const auto place = choices[static_cast<size_t>(draw(0, static_cast<int>(choices.size())))];
      const bool uneven = draw(0, 3) == 0;
      if (b.refusal(node, place.input, place.dim, step, uneven)) continue;
      b.partition(node, place.input, place.dim, step, uneven);
      done = true;
    }
    if (!done) b.replicate(node, step);
  }
}

}  // namespace

Drawn draw_plan(const Draw& draw) {
  static const std::vector<GraphPtr> models{perceptrons(3), transformer(2), linears(), oddities()};
  Drawn out{models[static_cast<size_t>(draw(0, static_cast<int>(models.size())))], {}};
  const graph::Graph& graph = *out.graph;
  const int nodes = static_cast<int>(graph.nodes.size());
  const int stages = draw(1, 4), width = draw(1, stages > 1 ? 3 : 5), units = draw(1, 3);
  Builder b(out.graph, stages * width, stages * width * units);
  if (stages > 1) {
    std::set<int> first;
    while (static_cast<int>(first.size()) < stages - 1) first.insert(draw(1, nodes));
    std::vector<std::vector<int>> devices;
    for (int s = 0; s < stages; ++s) {
      devices.emplace_back();
      for (int d = 0; d < width; ++d) devices.back().push_back(s * width + d);
    }
    b.stage({first.begin(), first.end()}, devices);
    const char* schedules[] = {"1f1b", "gpipe", "zb_h1", "chimera"};
    const char* schedule = schedules[draw(0, stages == 2 ? 4 : 3)];
    b.schedule(schedule, 2 * draw(1, 3), 1);
  } else {
    b.schedule("1f1b", draw(1, 3), 1);
  }
  if (units * width > 1 && draw(0, 2) == 0) {
    b.zero(draw(plan::Zero::slots, plan::Zero::weights + 1));
    if (draw(0, 2) == 0) b.zero_scatter();
    if (units % 2 == 0 && draw(0, 2) == 0) b.zero_groups(2);
  }
  for (int node = 0; node < nodes; ++node) {
    cut_node(b, node, width, draw);
    std::vector<int> order = b.devices_of_stage(b.stage_of(node));
    if (draw(0, 4) == 0) std::reverse(order.begin(), order.end());
    b.assign(node, order);
  }
  if (draw(0, 2) == 0) {
    const int from = draw(0, nodes), to = draw(from, nodes);
    std::vector<int> region;
    for (int node = from; node < to && b.stage_of(node) == b.stage_of(from); ++node)
      region.push_back(node);
    if (!region.empty()) b.recompute(region);
  }
  out.plan = b.finish("random");
  return out;
}

}  // namespace nns::test
