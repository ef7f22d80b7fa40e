// Schemas of the operators that LibTorch has.
#pragma once

struct lua_State;

namespace nns::trace {

// Adds schemas to the table on top.
void add_schemas(lua_State* L);

}  // namespace nns::trace
