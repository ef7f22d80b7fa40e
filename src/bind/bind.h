// Lua bindings of the planner core, one file a folder of it. Each `open_X` makes
// `require 'nnscaler._C.X'` work.
#pragma once

#include <string>
#include <vector>

struct lua_State;

namespace nns::bind {

// The list of strings at `index`; empty where there is no table.
std::vector<std::string> strings_at(lua_State* L, int index);

// Each registers its module; all are called for every new machine.
void open_base(lua_State* L);     // nnscaler._C.base: log, files, json, hashes, version
void open_graph(lua_State* L);    // nnscaler._C.graph: graphs, records of operators
void open_plan(lua_State* L);     // nnscaler._C.plan: policies' builder, plans, schedules
void open_lower(lua_State* L);    // nnscaler._C.lower: programs and their Lua, derivative rules
void open_solve(lua_State* L);    // nnscaler._C.solve: hardware, the plan that costs least
void open_process(lua_State* L);  // nnscaler._C.process: signals, resident memory
void open_launch(lua_State* L);   // nnscaler._C.launch: ranks that a launcher started
void open_job(lua_State* L);      // nnscaler._C.job: schema, YAML, overrides

}  // namespace nns::bind
