// Adds `connect` to nnscaler._C.runtime: a generated program as one function of autograd.
#pragma once

struct lua_State;

namespace nns::runtime {

void add_function(lua_State* L);

}  // namespace nns::runtime
