// One call held against the operator table, for `nnscaler verify --op` and the tests of the table.
#pragma once

struct lua_State;

namespace nns::trace {

// Adds `probe` and `run_part` to the module table at the top of the stack.
void add_probe(lua_State* L);

}  // namespace nns::trace
