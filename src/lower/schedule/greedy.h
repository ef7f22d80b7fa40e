// List scheduling: orders the parts of a schedule by simulating unit times and letting each free
// rank take the most urgent part that is ready: B before F before W.
#pragma once

#include <functional>

#include "lower/schedule/schedule.h"

namespace nns::lower {

struct GreedyRules {
  // Most micro-batches of a stage whose F ran but whose activations are not yet freed.
  std::function<int(int rank, int stage)> in_flight;
  int total_in_flight = 1 << 30;  // the same, over all stages of a rank
  bool lane_order = false;        // among ready forwards take the lowest micro-batch first
};

// Fills s.orders; placement, stages and micros must be set.
void order_greedily(Schedule& s, const GreedyRules& rules);

}  // namespace nns::lower
