// Bound: how fast a plan within a limit of memory can be at most, by linear programs.
#pragma once

#include <optional>

#include "solve/solve.h"

namespace nns::solve {

// Seconds of a step that no plan within the limit goes below, whatever is chosen: cuts, level of
// shards, stages, blocks that run again. Nothing where that is no more than `fastest`, which is
// known of all plans, where there is no HiGHS, or where it would take too much work. `seconds`: of
// a plan that is known, more than which is not looked for.
std::optional<double> bound(const Problem& problem, std::optional<int64_t> memory,
                            const Choices& choices, double seconds, double fastest);

}  // namespace nns::solve
