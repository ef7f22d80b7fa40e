// Static check of the Programs of all ranks together.
#pragma once

#include <vector>

#include "lower/program.h"
#include "plan/plan.h"

namespace nns::lower {

// Plays one step of the plan's schedule on all ranks without data, sends never waiting, and throws
// an internal Error that names ranks, operation and module unless
//   every message is received, with the region and type that were sent, and nobody waits for one;
//   the members of a group call the same collectives in the same order, and are members;
//   the gradient of every parameter is summed exactly once over exactly the ranks that say so.
// `programs` are those of ranks 0, 1, … in order, of the training graph or of another.
void check_ranks(const std::vector<const Program*>& programs, const plan::Plan& plan);

}  // namespace nns::lower
