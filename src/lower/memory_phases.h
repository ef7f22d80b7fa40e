// Memory of the device phase by phase of a training step, to the byte.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/program.h"
#include "lower/schedule/schedule.h"

namespace nns::lower {

// Memory of the device in the phases of a step, beside what rests there all the time.
struct Phase {
  // With messages, results, weights that are gathered for use and their casts.
  int64_t activations = 0;
  int64_t gradients = 0;
  int64_t total() const { return activations + gradients; }
};
struct Phases {
  Phase forward;   // the most at the end of a forward
  Phase backward;  // the most at any time until all gradients are there
  Phase step;      // once they are
};

// Memory of a step of so many micro-batches, to the byte: gradients are made by the first of them,
// where they lie. With `apart` they rest in memory of the host.
Phases phases(const Program& program, const std::vector<Action>& order, bool apart = false);

}  // namespace nns::lower
