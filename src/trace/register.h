// Registration of operators by scripts.
#pragma once

struct lua_State;

namespace nns::trace {

// Adds register_op, composite and registered to the table on top.
void add_register(lua_State* L);

}  // namespace nns::trace
