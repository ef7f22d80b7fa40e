// Report: what a search says of its plan: how much it looked at, what each operator costs and what
// its other cuts would, which whole plans were rejected and why, and what must be held at least.
#pragma once

#include <string>
#include <vector>

#include "solve/arrange.h"

namespace nns::solve {

struct Statistics {
  size_t calls = 0, kinds = 0;         // operators of the graph; distinct ones
  size_t candidates = 0;               // ways to run them, summed over distinct ones
  size_t segments = 0, steps = 0;      // blocks and what lies between; distinct steps of the search
  size_t labels = 0, frontiers = 0;    // partial plans; most frontiers at one place
  size_t arranged = 0, simulated = 0;  // whole plans that were estimated, and lowered and simulated
  double space_seconds = 0, search_seconds = 0, check_seconds = 0;  // that it took
};

// Another way to run an operator, all others as they are.
struct Other {
  int input = -1, dim = 0;  // -1: whole on every device
  double more = 0;          // seconds a step
  int64_t bytes = 0;        // more bytes, at rest and kept
};

// What was chosen for an operator, and what it costs with the conversions of its operands.
struct Choice {
  int node = 0, stage = 0;
  bool recompute = false;
  int input = -1, dim = 0;         // -1: whole on every device
  double micro = 0, once = 0;      // seconds of a micro-batch; of a step beside
  int64_t resting = 0, saved = 0;  // bytes that it adds
  std::vector<Other> others = {};  // of the first of equal operators in equal surroundings
};

// A whole plan that was simulated.
struct Tried {
  std::string what;  // "4 stages of 2 devices, 1f1b; ZeRO 1; half of the blocks recomputed"
  double seconds = 0;
  int64_t peak = 0;
  bool chosen = false;
  std::string why;  // what binds: the limit of memory, or the time
};

// What rests at least, by weight.
struct Contributor {
  std::string name;
  int64_t bytes = 0;
};

struct Report {
  Statistics statistics;
  std::vector<Choice> choices;  // in program order
  std::vector<Tried> tried;     // in the order in which they were simulated
  int64_t least_resting = 0;    // bytes of weights, gradients and slots that no plan goes below
  std::vector<Contributor> contributors;  // largest first, at most ten
};

std::string to_json(const Report& report);

// Words for an arrangement.
std::string describe(const Space& space, const Arrangement& arrangement);

std::vector<Choice> choices(const Space& space, const Arrangement& arrangement);
std::vector<Contributor> contributors(const Space& space);

}  // namespace nns::solve
