#include "solve/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

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
                   const std::string& policy, int zero) {
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
  builder.zero(zero);
  return builder.finish(policy);
}

namespace {

// The faster of a plan with replicated weights and the same cuts with weights in shards; of those
// that keep the limit. Nothing where neither does, `least` is then the smaller peak.
std::optional<std::pair<plan::Plan, lower::StepCost>> best_home(
    const Space& space, const std::vector<uint8_t>& candidates, std::optional<int64_t> memory,
    const std::string& policy, int64_t& least) {
  const Problem& problem = space.problem();
  std::optional<std::pair<plan::Plan, lower::StepCost>> best;
  for (const int zero : {plan::Zero::none, plan::Zero::weights}) {
    if (zero == plan::Zero::weights &&
        (problem.runtime_ngpus == problem.plan_ngpus || !problem.graph->training))
      continue;
    lower::Options options;
    options.device = problem.device;
    auto plan = std::make_shared<plan::Plan>(plan_of(space, candidates, policy, zero));
    options.plan = plan;
    const lower::StepCost cost = lower::simulate(lower::Skeleton(problem.graph, options), *plan,
                                                 problem.on, problem.settings);
    least = std::min(least, cost.total);
    if (memory && cost.total > *memory) continue;
    if (!best || cost.seconds < best->second.seconds) best.emplace(std::move(*plan), cost);
  }
  return best;
}

// Where the exact search is too long: the fastest of plans that trade time for weights at rest at
// one price a byte, by bisection of the price. Nothing where even the smallest does not fit.
std::optional<std::pair<plan::Plan, lower::StepCost>> by_price(const Space& space, double seconds,
                                                               int64_t memory,
                                                               const std::string& policy) {
  constexpr int kHalvings = 7;
  std::optional<std::pair<plan::Plan, lower::StepCost>> best;
  const double unit = seconds / static_cast<double>(memory);
  double low = -4, high = 3;  // powers of ten of `unit`
  for (int i = 0; i <= kHalvings; ++i) {
    const double power = i == 0 ? high : (low + high) / 2;
    Limits limits;
    limits.price = unit * std::pow(10.0, power);
    const auto found = search(space, limits);
    int64_t least = INT64_MAX;
    auto made = best_home(space, found->candidates, memory, policy, least);
    if (made && (!best || made->second.seconds < best->second.seconds)) best = std::move(made);
    if (i == 0 && !best) return std::nullopt;
    if (i > 0) (least <= memory ? high : low) = power;
  }
  return best;
}

}  // namespace

Solution solve(const Problem& problem, std::optional<int64_t> memory, const std::string& policy) {
  constexpr int kTries = 6;
  Solution out;
  double start = now();
  const auto lap = [&] {
    const double before = std::exchange(start, now());
    return start - before;
  };
  const Space space(problem);
  out.space_seconds = lap();
  auto found = search(space, {});
  NNS_CHECK(found, "a graph without plan");
  out.fastest = found->seconds;
  out.search_seconds = lap();
  std::optional<int64_t> limit = memory;
  for (int tries = 0;; ++tries) {
    int64_t least = INT64_MAX;
    auto made = best_home(space, found->candidates, memory, policy, least);
    out.check_seconds += lap();
    if (made) {
      out.plan = std::move(made->first);
      out.cost = made->second;
      break;
    }
    // The next plan has to keep less by as much as the peak was too high.
    const auto priced = price(space, found->candidates);
    NNS_CHECK(priced, "the plan that was found has no homes");
    limit = std::min(*limit, priced->resting + priced->saved - (least - *memory));
    if (tries < kTries && least_resting(space) <= *limit) {
      Limits limits;
      limits.memory = limit;
      found = search(space, limits);
    } else {
      found.reset();
    }
    out.bound = true;
    if (!found || !found->exact) {
      auto traded = by_price(space, out.fastest, *memory, policy);
      out.search_seconds += lap();
      if (!traded && !found) too_small(space, *memory);
      if (!traded) continue;
      out.plan = std::move(traded->first);
      out.cost = traded->second;
      out.searched = out.cost.seconds;
      out.gap = std::max(0.0, 1 - out.fastest / out.searched);
      out.exact = out.gap == 0;
      out.calls = space.sequence().size() - 1;
      out.kinds = space.kinds().size();
      return out;
    }
    out.search_seconds += lap();
  }
  out.searched = found->seconds;
  out.exact = found->exact;
  if (!found->exact) out.gap = 1 - out.fastest / found->seconds;
  out.labels = found->labels;
  out.frontiers = found->frontiers;
  out.calls = space.sequence().size() - 1;
  out.kinds = space.kinds().size();
  return out;
}

}  // namespace nns::solve
