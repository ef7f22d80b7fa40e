// Operators that scripts register.
#pragma once

struct lua_State;

namespace nns::trace {

// Adds register_op, composite, registered and load_library to the table on top.
void add_own_ops(lua_State* L);

}  // namespace nns::trace
