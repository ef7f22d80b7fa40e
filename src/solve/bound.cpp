#include "solve/bound.h"

#include <algorithm>
#include <memory>

#include "solve/ilp.h"
#include "solve/linear.h"
#include "solve/search.h"

namespace nns::solve {

std::optional<double> bound(const Problem& problem, int64_t memory, const Choices& choices,
                            double seconds) {
  if (!highs_problem().empty()) return std::nullopt;
  // Ranks of a pipeline share a step, and the bytes of one micro-batch, at best evenly.
  struct Way {
    double free = 0;  // seconds without a limit
    std::shared_ptr<const Space> space;
    int ranks = 1, zero = plan::Zero::none;
  };
  std::vector<Way> ways;
  for (int ranks : pipelines(problem, choices)) {
    Problem staged = problem;
    staged.pipeline = ranks;
    const auto space = std::make_shared<const Space>(staged);
    for (int zero : levels(problem, choices))
      ways.push_back({search(*space, {.zero = zero})->seconds / ranks, space, ranks, zero});
  }
  std::ranges::stable_sort(ways, {}, &Way::free);
  double least = seconds;
  for (const Way& way : ways) {
    if (way.free >= least) break;
    const auto found =
        least_seconds(*way.space, {.memory = std::min(memory, int64_t{1} << 50) * way.ranks,
                                   .zero = way.zero,
                                   .recompute = choices.recompute && problem.graph->training,
                                   .classes = true});
    least = std::min(least, std::max(found.value_or(0) / way.ranks, way.free));
    if (least <= ways[0].free * (1 + 1e-9)) return std::nullopt;
  }
  return least;
}

}  // namespace nns::solve
