// Bound: how fast a plan within a limit of memory can be at most, by linear programs.
#pragma once

#include <optional>

#include "solve/solve.h"

namespace nns::solve {

// Seconds of a step that no plan within the limit goes below, whatever is chosen: cuts, level of
// shards, stages, blocks that run again. Nothing where that is no more than what plans take without
// a limit, where there is no HiGHS, or where it would take too much work. `seconds`: of a plan that
// is known, more than which is not looked for.
std::optional<double> bound(const Problem& problem, int64_t memory, const Choices& choices,
                            double seconds);

}  // namespace nns::solve
