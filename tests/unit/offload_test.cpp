// Activations that wait on the host: the same numbers, less of them kept on the device, and memory
// as it is told.
#include <catch2/catch.hpp>

#include "lower/memory.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;

namespace {

// Data parallelism over two ranks, or one of two stages each; blocks are offloaded, or recomputed
// and offloaded.
std::shared_ptr<const plan::Plan> plan_of(const GraphPtr& graph, int stages, bool offload,
                                          bool recompute = false) {
  plan::Builder b(graph, stages, 2);
  std::vector<int> blocks;
  int second = -1;
  for (const graph::Node& node : graph->nodes) {
    if (node.module.starts_with("h.")) blocks.push_back(node.id);
    if (second < 0 && node.module.starts_with("h.1")) second = node.id;
  }
  if (stages == 2) b.stage({second}, {{0}, {1}});
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  if (offload) b.offload(blocks);
  for (const char* block : {"h.0", "h.1"}) {
    std::vector<int> own;
    for (int id : blocks)
      if (graph->nodes[static_cast<size_t>(id)].module.starts_with(block)) own.push_back(id);
    if (recompute) b.recompute(own);
  }
  if (stages == 2) b.schedule("1f1b", 2, 1, {});
  return std::make_shared<const plan::Plan>(b.finish("hand"));
}

}  // namespace

TEST_CASE("offloaded activations give the same numbers in less memory of the device") {
  for (const GraphPtr& graph : {perceptrons(2), transformer(2)}) {
    for (int stages : {1, 2}) {
      const auto before = lower_all(graph, plan_of(graph, stages, false));
      const Inputs inputs = random_inputs(*graph, 4, 1);
      const Outcome want = run(before, inputs);
      for (bool recompute : {false, true}) {
        INFO(graph->name << ", stages: " << stages << ", recompute: " << recompute);
        const auto programs = lower_all(graph, plan_of(graph, stages, true, recompute));
        const Outcome got = run(programs, inputs);
        CHECK(difference(want, got, 0) == "");
        CHECK(unmeasured(programs, got) == "");
        for (size_t r = 0; r < programs.ranks.size(); ++r) {
          const auto now = lower::memory(programs.ranks[r].program);
          const auto then = lower::memory(before.ranks[r].program);
          if (!recompute) CHECK(now.host > 0);
          CHECK(now.saved < then.saved);
          CHECK(now.peak <= then.peak);
        }
      }
    }
  }
}

TEST_CASE("a plan keeps what is offloaded, as text and as JSON") {
  const auto plan = plan_of(perceptrons(2), 1, true);
  CHECK(to_text(*plan).find("h.0.fc aten::linear#0 offload: replicate 1 on 0") !=
        std::string::npos);
  CHECK(to_text(plan::from_json(to_json(*plan))) == to_text(*plan));
}
