// The Lua userdata "nnscaler.Plan": an immutable plan::Plan.
#pragma once

#include <memory>
#include <vector>

#include "lower/schedule/schedule.h"
#include "plan/plan.h"

struct lua_State;

namespace nns::bind {

inline constexpr const char* kPlanType = "nnscaler.Plan";

void push_plan(lua_State* L, plan::Plan plan);
// Returns the plan at `index`, or raises an argument error.
const plan::Plan& check_plan(lua_State* L, int index);

// Per pipeline rank a list of { kind =, stage =, micro =, start =, stop = }.
void push_lines(lua_State* L, const std::vector<std::vector<lower::Timed>>& lines);

}  // namespace nns::bind
