#include "solve/bound.h"

#include <algorithm>
#include <ranges>

#include "solve/ilp.h"
#include "solve/linear.h"
#include "solve/search.h"

namespace nns::solve {

// Ranks of a pipeline share a step, and the bytes of one micro-batch, at best evenly; so many ranks
// are bounded soon, and say least.
std::optional<double> bound(const Problem& problem, std::optional<int64_t> memory,
                            const Choices& choices, double seconds, double fastest) {
  if (!highs_problem().empty()) return std::nullopt;
  double least = seconds;
  for (int ranks : pipelines(problem, choices) | std::views::reverse) {
    Problem staged = problem;
    staged.pipeline = ranks;
    const Space space(staged);
    Question question{.recompute = choices.recompute && problem.graph->training, .classes = true};
    if (memory) question.memory = std::min(*memory, int64_t{1} << 50) * ranks;
    for (int zero : levels(problem, choices)) {
      question.zero = zero;
      const auto free = search(space, {.zero = zero});
      double way = free->exact ? free->seconds / ranks : 0;
      if (way >= least) continue;
      if (memory || !free->exact)
        way = std::max(way, least_seconds(space, question).value_or(0) / ranks);
      least = std::min(least, way);
      if (least <= fastest * (1 + 1e-9)) return std::nullopt;
    }
  }
  return least;
}

}  // namespace nns::solve
