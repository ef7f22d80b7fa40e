// AutoDist: the plan of a graph that takes least time on given hardware within a limit of memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "solve/report.h"

namespace nns::solve {

// What may be chosen beside the cuts of operators.
struct Choices {
  int pipeline = 1;              // pipeline ranks; 0: any divisor of the plan's devices
  std::string schedule = {};     // of a pipeline; empty: 1f1b, 1f1b_interleaved or zb_h1
  int most_width = 0;            // devices that share a stage; 0: no bound
  double most_bubble = 1;        // part of a step in which pipeline ranks wait
  std::vector<int> begins = {};  // nodes at which a stage may begin, ascending; empty: any
  std::optional<int> zero = {};  // level of all weights; nothing: any
  bool recompute = true;         // whether blocks may run again in backward
  bool report = false;           // whether `Report::choices` is wanted
};

// Numbers of pipeline ranks, and levels of plan::Zero, that may be chosen.
std::vector<int> pipelines(const Problem& problem, const Choices& choices);
std::vector<int> levels(const Problem& problem, const Choices& choices);

struct Solution {
  plan::Plan plan;
  lower::StepCost cost;  // of a step, by the simulator
  double searched = 0;   // of a step, by the costs of the search
  bool exact = true;     // no plan of the space is faster within what the search was given
  double gap = 0;        // the most that a plan could be faster, where that is not known exactly
  bool bound = false;    // the limit made it take another plan than the fastest
  double fastest = 0;    // seconds that no plan goes below; 0: unknown, a search was thinned
  std::string arranged;  // stages, shards and recomputation in words
  Report report;
};

// Finds plans for `problem.plan_ngpus` devices: cuts of all calls, divisions into stages, weights,
// gradients or slots in shards, and blocks that run again in backward. They are visited from the
// fastest on by their estimates, and the simulator decides. What is visited does not depend on the
// limit of memory, so a step never takes longer with a larger one. The limit holds for the peak of
// the simulator.
class Planner {
 public:
  Planner(const Problem& problem, const Choices& choices = {},
          const std::string& policy = "autodist");
  ~Planner();
  // The best plan. Throws a plan Error that names what is needed and what there is where no plan
  // keeps the limit, or none is as `choices` ask. What one limit made known serves the next.
  Solution within(std::optional<int64_t> memory);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Of one limit.
Solution solve(const Problem& problem, std::optional<int64_t> memory, const Choices& choices = {},
               const std::string& policy = "autodist");

}  // namespace nns::solve
