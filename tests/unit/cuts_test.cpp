// Every cut that an operator's annotation allows, against the whole operator: losses and all
// gradients of Programs on two and three devices. And plans drawn at random.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/check_ranks.h"
#include "plan/builder.h"
#include "support/models.h"
#include "support/operator_cases.h"

using namespace nns;
using namespace nns::test;
using plan::Builder;

namespace {

void replicate_rest(Builder& b) {
  for (const graph::Node& node : b.graph().nodes)
    if (!b.planned(node.id))
      b.replicate(node.id, static_cast<int>(b.devices_of_stage(b.stage_of(node.id)).size()));
}

std::string compare(const GraphPtr& graph, const plan::Plan& plan, const Inputs& inputs,
                    const Outcome& want) {
  const auto shared = std::make_shared<const plan::Plan>(plan);
  const Programs programs = lower_all(graph, shared);
  const Outcome got = run(programs, inputs);
  if (const std::string off = difference(want, got); !off.empty()) return off;
  std::vector<const lower::Program*> all;
  for (const auto& lowered : programs.ranks) all.push_back(&lowered.program);
  lower::check_ranks(all, plan);
  return miscounted(programs, got);
}

}  // namespace

TEST_CASE("every cut of every operator is the whole") {
  int cuts = 0;
  for (const OperatorCase& c : operator_cases()) {
    const GraphPtr graph = graph_of(c);
    const Inputs inputs = inputs_of(c, *graph, 1, 3);
    const Outcome want = run(lower_all(graph), inputs);
    const int calls = static_cast<int>(calls_of(c).nodes.size());
    for (int parts : {2, 3})
      for (int node = 0; node < calls; ++node)
        for (const annotate::Place& place : Builder(graph, parts, parts).choices(node)) {
          Builder b(graph, parts, parts);
          // Of three parts only those that differ: the even ones are seen with two.
          const bool uneven = parts == 3;
          if (b.refusal(node, place.input, place.dim, parts, uneven)) continue;
          INFO(c.title() << ": node " << node << ", input " << place.input << ", dimension "
                         << place.dim << " in " << parts);
          b.partition(node, place.input, place.dim, parts, uneven);
          replicate_rest(b);
          CHECK(compare(graph, b.finish("hand"), inputs, want) == "");
          ++cuts;
        }
  }
  CHECK(cuts > 500);
}

namespace {

struct Drawn {
  GraphPtr graph;
  plan::Plan plan;
};

int draw(int low, int high) {
  return *rc::gen::inRange(low, high);
}

// Cuts a node over `parts` devices in one or two steps, or copies it.
void cut_node(Builder& b, int node, int parts) {
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

// A plan of one of the models: stages, cuts, orders of devices, turns, recompute, homes, schedules.
Drawn draw_plan() {
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
    b.schedule(schedules[draw(0, stages == 2 ? 4 : 3)], 2 * draw(1, 3), 1);
  } else {
    b.schedule("1f1b", draw(1, 3), 1);
  }
  if (units * width > 1 && draw(0, 2) == 0) {
    b.zero(draw(plan::Zero::slots, plan::Zero::weights + 1));
    if (draw(0, 2) == 0) b.zero_scatter();
    if (units % 2 == 0 && draw(0, 2) == 0) b.zero_groups(2);
  }
  for (int node = 0; node < nodes; ++node) {
    cut_node(b, node, width);
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

}  // namespace

TEST_CASE("plans drawn at random are one device") {
  int ran = 0, refused = 0;
  CHECK(rc::check([&] {
    Drawn drawn;
    try {
      drawn = draw_plan();
      const Inputs inputs = random_inputs(
          *drawn.graph, static_cast<size_t>(drawn.plan.units() * drawn.plan.micro_batches), 5);
      const Outcome want = run(lower_all(drawn.graph), inputs);
      const std::string off = compare(drawn.graph, drawn.plan, inputs, want);
      if (!off.empty()) RC_FAIL(off + "\n" + plan::to_text(drawn.plan));
    } catch (const Error& e) {
      // A plan that is refused by name is none; anything else is a fault.
      if (e.kind() != ErrorKind::plan) RC_FAIL(e.message() + "\n" + plan::to_text(drawn.plan));
      ++refused;
      return;
    }
    ++ran;
  }));
  CAPTURE(refused);
  CHECK(ran >= 60);
}

TEST_CASE("a scale unit whose devices see other rows is a ZeRO group by itself") {
  const GraphPtr graph = transformer(2);
  for (int level : {1, 2, 3}) {
    Builder b(graph, 2, 4);
    for (const graph::Node& node : graph->nodes) {
      if (b.refusal(node.id, 0, 0, 2))
        b.replicate(node.id, 2);
      else
        b.partition(node.id, 0, 0, 2);
    }
    b.zero(level);
    b.zero_groups(2);
    const Inputs inputs = random_inputs(*graph, 2, 5);
    CHECK(compare(graph, b.finish("rows"), inputs, run(lower_all(graph), inputs)).empty());
  }
}
