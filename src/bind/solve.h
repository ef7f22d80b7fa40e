// What bindings of the planner share: hardware and the settings of a step, from Lua tables.
#pragma once

#include "lower/duration.h"

struct lua_State;

namespace nns::bind {

// Of the table at `index`: { hardware = as cost::find_hardware takes it, "cpu" by default }.
cost::Hardware hardware_at(lua_State* L, int index);
// { micro_batches =, bucket_bytes =, state = }, with the defaults of lower::StepSettings.
lower::StepSettings step_settings_at(lua_State* L, int index);
// A table { seconds =, forward =, backward =, communication =, sums =, update =, resting =,
// saved =, total = }; seconds are those of a step, `forward` and `backward` of a micro-batch with
// their communication, which `communication` names apart.
void push_step_cost(lua_State* L, const lower::StepCost& cost);

}  // namespace nns::bind
