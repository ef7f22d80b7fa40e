// Traffic: what a rank sends in one micro-batch and in the sums of a step, read off its Program.
#pragma once

#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Traffic {
  std::string segment;  // "step": sums of gradients, shards of weights, once per step
  std::string op;       // "all_reduce"
  int ranks = 0;        // of the group; 0: point to point
  int64_t calls = 0;
  int64_t bytes = 0;     // payload that leaves this rank, padding of gathers and scatters included
  bool weights = false;  // gathers and scatters of weights that rest in shards
};

// Elements that leave a rank in an all-reduce: each sums a part, which the others give it, and
// gives them the sum. The parts of the first ranks are the longest.
int64_t sent_by_all_reduce(int64_t elements, int64_t ranks, int64_t position);

// Elements of a list of moves (Exchange::sends) that go to other ranks; tensors have so many
// dimensions.
int64_t moved_elements(const Shape& moves, size_t dims, int rank);

// Elements that each rank gives where weights of a set are gathered after their update: as many as
// the rank with most of them has. For sets whose weights do not rest in shards.
int64_t chunk_of(const Program& program, const GradientSet& set);

// One entry a segment, operation, size of group and kind, in order of first occurrence.
std::vector<Traffic> traffic(const Program& program);

}  // namespace nns::lower
