// Traffic: the payload that a rank sends when it runs its Program, call by call. A closed form of
// the padded sizes that the communicator moves, so that what is counted there can be compared.
#pragma once

#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Traffic {
  std::string segment;  // "" for sums of gradients at the end of a step
  std::string op;       // "comm::all_reduce", …
  int ranks = 0;        // of the group; of a send: how many get something
  int64_t bytes = 0;    // that this rank sends
};

// Every communication call of one micro-batch in program order, then the sums of gradients of a
// step.
std::vector<Traffic> traffic(const Program& program);

// A ring's payload of one rank: 2(n−1) chunks of ⌈elements / n⌉.
int64_t all_reduce_elements(int64_t elements, int64_t ranks);

}  // namespace nns::lower
