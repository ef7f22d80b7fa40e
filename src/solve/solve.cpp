#include "solve/solve.h"

#include <chrono>

#include "base/error.h"

namespace nns::solve {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

[[noreturn]] void too_small(const Space& space, int64_t memory) {
  const int64_t least = least_resting(space);
  const int n = space.problem().plan_ngpus;
  throw Error(
      ErrorKind::plan,
      fmt::format("[solve.memory] no plan of {} device(s) keeps {:.2f} GiB a device; weights, "
                  "gradients and optimizer state take {:.2f} GiB at least",
                  n, gib(memory), gib(least)),
      "more devices (compute_config.plan_ngpus), smaller micro-batches, or a larger "
      "pas_config.mem_constraint");
}

}  // namespace

plan::Plan plan_of(const Space& space, const std::vector<uint8_t>& candidates,
                   const std::string& policy) {
  const Problem& problem = space.problem();
  plan::Builder builder(problem.graph, problem.plan_ngpus, problem.runtime_ngpus);
  for (size_t i = 0; i < space.sequence().size(); ++i) {
    const Step& step = space.steps()[static_cast<size_t>(space.sequence()[i])];
    if (step.kind < 0) continue;
    const Candidate& c = space.kinds()[static_cast<size_t>(step.kind)].candidates[candidates[i]];
    if (c.input >= 0) builder.partition(space.nodes()[i], c.input, c.dim, problem.plan_ngpus);
  }
  for (const graph::Node& node : problem.graph->nodes)
    if (!builder.planned(node.id)) builder.replicate(node.id, problem.plan_ngpus);
  builder.schedule("1f1b", problem.settings.micro_batches, 1);
  return builder.finish(policy);
}

Solution solve(const Problem& problem, std::optional<int64_t> memory, const std::string& policy) {
  Solution out;
  const double start = now();
  const Space space(problem);
  out.space_seconds = now() - start;
  auto found = search(space, {});
  NNS_CHECK(found, "a graph without plan");
  const auto priced = price(space, found->candidates);
  NNS_CHECK(priced, "the plan that was found has no homes");
  found->resting = priced->resting;
  found->saved = priced->saved;
  out.fastest = found->seconds;
  if (memory && found->resting + found->saved > *memory) {
    if (least_resting(space) > *memory) too_small(space, *memory);
    found = search(space, {memory});
    if (!found) too_small(space, *memory);
    out.bound = true;
    if (!found->exact) out.gap = 1 - out.fastest / found->seconds;
  }
  out.plan = plan_of(space, found->candidates, policy);
  out.seconds = found->seconds;
  out.resting = found->resting;
  out.saved = found->saved;
  out.exact = found->exact;
  out.labels = found->labels;
  out.frontiers = found->frontiers;
  out.calls = space.sequence().size() - 1;
  out.kinds = space.kinds().size();
  out.search_seconds = now() - start - out.space_seconds;
  return out;
}

}  // namespace nns::solve
