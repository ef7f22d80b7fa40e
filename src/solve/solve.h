// AutoDist: the plan of a graph that takes least time on given hardware within a limit of memory.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"
#include "solve/search.h"

namespace nns::solve {

struct Solution {
  plan::Plan plan;
  lower::StepCost cost;  // of a step, by the simulator
  double searched = 0;   // seconds of a step with replicated weights, by the search
  bool exact = true;     // no plan of the space is faster within what the search was given
  double gap = 0;        // of a thinned search: the most that a plan could be faster, of `searched`
  bool bound = false;    // the limit made it take another plan than the fastest
  double fastest = 0;    // seconds of the fastest plan without limit
  size_t labels = 0, frontiers = 0, calls = 0, kinds = 0;
  double space_seconds = 0, search_seconds = 0, check_seconds = 0;  // that it took
};

// The plan for `problem.plan_ngpus` devices: cuts of all calls, exact where the weights are
// replicated over the scale units; the same cuts with weights that rest in shards are simulated
// too. The limit holds for the peak of the simulator. Throws a plan Error that names what is needed
// and what there is where no plan keeps it.
Solution solve(const Problem& problem, std::optional<int64_t> memory,
               const std::string& policy = "autodist");

// The plan of the candidates of a space.
plan::Plan plan_of(const Space& space, const std::vector<uint8_t>& candidates,
                   const std::string& policy, int zero = plan::Zero::none);

}  // namespace nns::solve
