// Traffic: what a rank sends in one micro-batch and in the sums of a step, read off its Program.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Traffic {
  std::string segment;  // "step": sums of gradients, once per step
  std::string op;       // "all_reduce"
  int ranks = 0;        // of the group; 0: point to point
  int64_t calls = 0;
  int64_t bytes = 0;     // payload that leaves this rank, padding of gathers and scatters included
  bool weights = false;  // gathers and scatters of weights that rest in shards
};

// Gradients that one all-reduce sums: of one dtype and group.
struct Bucket {
  std::vector<int> ranks;       // global
  std::vector<int> parameters;  // slots
};

// Elements that leave a rank in an all-reduce: each sums a part, which the others give it, and
// gives them the sum. The parts of the first ranks are the longest.
int64_t sent_by_all_reduce(int64_t elements, int64_t ranks, int64_t position);

// Elements of a list of moves (Exchange::sends) that go to other ranks; tensors have so many
// dimensions.
int64_t moved_elements(const Shape& moves, size_t dims, int rank);

// Buckets of at most `bytes` (or one gradient), in the order in which backward completes them; in
// pipelines in that of the parameters, which stages that share weights agree on. `others`: names of
// parameters that a stage of another rank may have the gradient of.
std::vector<Bucket> buckets(const Program& program, int64_t bytes,
                            const std::set<std::string>& others = {});

// One entry a segment, operation, size of group and kind, in order of first occurrence.
std::vector<Traffic> traffic(const Program& program, const std::vector<Bucket>& buckets);

}  // namespace nns::lower
