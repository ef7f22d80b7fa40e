// AutoDist: the plan of a graph that takes least time on given hardware within a limit of memory.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"
#include "solve/search.h"

namespace nns::solve {

struct Solution {
  plan::Plan plan;
  double seconds = 0;  // of a step, by the pieces
  int64_t resting = 0, saved = 0;
  bool exact = true;
  double gap = 0;      // of a thinned search: how much faster a plan could be at most, of `seconds`
  bool bound = false;  // the limit made it take another plan than the fastest
  double fastest = 0;  // seconds of the fastest plan without limit
  size_t labels = 0, frontiers = 0, calls = 0, kinds = 0;
  double space_seconds = 0, search_seconds = 0;  // that it took
};

// The plan for `problem.plan_ngpus` devices. Throws a plan Error that names what is needed and what
// there is where no plan keeps the limit.
Solution solve(const Problem& problem, std::optional<int64_t> memory,
               const std::string& policy = "autodist");

// The plan of the candidates of a space.
plan::Plan plan_of(const Space& space, const std::vector<uint8_t>& candidates,
                   const std::string& policy);

}  // namespace nns::solve
