// The pipeline of a plan: which stages a device runs, and in which order.
#pragma once

#include <string>
#include <vector>

#include "lower/schedule/schedule.h"
#include "plan/plan.h"

namespace nns::lower {

// A stage that a device runs. Where a schedule goes through the ranks in both directions, lane 1 is
// the copy of the stage that serves odd micro-batches.
struct StagePart {
  int stage = 0, lane = 0;
};

// Lanes of a plan: 2 under chimera, else 1.
int lanes_of(const plan::Plan& plan);
// Stages that run on a device, ascending.
std::vector<StagePart> parts_on(const plan::Plan& plan, int device);
// The plan as a lane sees it: in lane 1 stage s lies on the devices of stage p-1-s.
plan::Plan lane_of(const plan::Plan& plan, int lane);

// Sets of devices that run the same stages, in order of their first stage, and the one that a
// device belongs to.
std::vector<std::vector<int>> pipeline_ranks(const plan::Plan& plan);
int pipeline_rank(const plan::Plan& plan, int device);

// The schedule of a plan for so many micro-batches of a unit; fewer than the plan was made for are
// what is left of its schedule. Throws a plan Error where the stages do not lie as the schedule
// wants them, or where it cannot do with the number.
Schedule schedule_of(const plan::Plan& plan, int micros);
// Whether each stage lives on one rank, which runs its forward on micro-batch after micro-batch.
bool forwards_ascend(const Schedule& schedule);
// Forward only, for evaluation.
Schedule inference_of(const plan::Plan& plan, int micros);

}  // namespace nns::lower
