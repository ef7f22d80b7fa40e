// The second engine: the problem of the search as an integer linear program, for HiGHS. It states
// what Mover counts, from the same pieces, in another way: no frontiers, but flows of each value
// from the ways to make it to those to read it. So it is a second opinion on the search, and
// without integers a bound of all plans.
//
// Exact: calls and what they cost by the strides of operands; conversions and the sums of gradients
// that they bring, paid once for all readers; homes of weights, in shards too; memory at rest and
// kept. Stated to cost less than it may, so that bounds hold:
//  - what norms spare in sums of gradients: the order of all contributions is not stated;
//  - calls with more than six operands that may be strided: all lie plainly;
//  - results of one call in more than six pieces of memory: what backward keeps of them;
//  - blocks that run again: any may, they hold nothing for themselves, and of conversions only
//  those
//    run again whose value is read nowhere else.
#pragma once

#include "solve/outline.h"

namespace nns::solve {

struct Optimum {
  bool found = false;  // a plan that keeps the limit
  double seconds = 0;
  std::vector<uint8_t> candidates = {};  // of each step of the sequence
};

// The best plan; nothing where there is no HiGHS, or it would take too much work.
std::optional<Optimum> optimum(const Space& space, const Question& question);

// Seconds that no plan within the limit goes below; nothing where there is no HiGHS, or it would
// take too much work.
std::optional<double> least_seconds(const Space& space, const Question& question);

}  // namespace nns::solve
