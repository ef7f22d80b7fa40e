// A plan drawn at random for one of the models: stages, cuts, orders of devices, recompute, homes,
// schedules.
#pragma once

#include <functional>

#include "plan/plan.h"
#include "support/models.h"

namespace nns::test {

struct Drawn {
  GraphPtr graph;
  plan::Plan plan;
};

// An integer in [low, high).
using Draw = std::function<int(int low, int high)>;

// Throws a plan Error where what was drawn does not fit together.
Drawn draw_plan(const Draw& draw);

}  // namespace nns::test
