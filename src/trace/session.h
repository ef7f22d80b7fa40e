// nnscaler._C.trace: runs a model under a Recorder.
#pragma once

struct lua_State;

namespace nns::trace {

void open(lua_State* L);

}  // namespace nns::trace
