// List scheduling: orders the parts of a schedule by simulating unit times and letting each free
// rank take the most urgent part that is ready: B before F before W.
#pragma once

#include <functional>

#include "lower/schedule/schedule.h"

namespace nns::lower {

struct GreedyRules {
  // Most micro-batches of a stage between F and B; empty: any number.
  std::function<int(int rank, int stage)> in_flight;
  int total_in_flight = 1 << 30;  // the same, over all stages of a rank
  // Most micro-batches of all stages of a rank that hold memory, from F to W; empty: any number.
  std::function<int(int rank)> kept;
};

// Fills s.orders; placement, stages and micros must be set.
void order_greedily(Schedule& s, const GreedyRules& rules);

}  // namespace nns::lower
