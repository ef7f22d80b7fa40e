// The Lua userdata "nnscaler.Program", an immutable lower::Lowered, and the tables that it and
// "nnscaler.Skeleton" answer with.
#pragma once

#include <vector>

#include "lower/lower.h"
#include "lower/memory.h"
#include "lower/traffic.h"

struct lua_State;

namespace nns::bind {

void push_program(lua_State* L, lower::Lowered lowered);
// The program that a method is called on.
const lower::Lowered& check_program(lua_State* L);
// Methods `traffic`, `call_costs` and `memory`.
int program_traffic(lua_State* L);
int program_call_costs(lua_State* L);
int program_memory(lua_State* L);
int program_phases(lua_State* L);
// List of { segment =, op =, ranks =, calls =, bytes =, weights = }.
void push_traffic(lua_State* L, const std::vector<lower::Traffic>& list);
// Bytes: { parameters, gradients, buffers, constants, saved, peak, total } of one micro-batch.
void push_memory(lua_State* L, const lower::Memory& memory);
// Adds `lower` and `skeleton`, which make Programs, and `count` to the table on top.
void add_skeleton(lua_State* L);

}  // namespace nns::bind
