// Exported programs for Lua.
#pragma once

struct lua_State;

namespace nns::trace::import {

// Adds open_program to the table on top.
void add_import(lua_State* L);

}  // namespace nns::trace::import
