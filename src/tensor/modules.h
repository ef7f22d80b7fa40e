// One `open_X` a folder; each preloads `nnscaler._C.X`. Called once for every Lua machine.
#pragma once

struct lua_State;

namespace nns::tensor {
void open(lua_State* L);  // nnscaler._C.tensor
}
namespace nns::trace {
void open(lua_State* L);  // nnscaler._C.trace
}
namespace nns::comm {
void open(lua_State* L);  // nnscaler._C.comm
}
namespace nns::runtime {
void open(lua_State* L);        // nnscaler._C.runtime
void open_train(lua_State* L);  // nnscaler._C.train
}  // namespace nns::runtime
namespace nns::checkpoint {
void open(lua_State* L);  // nnscaler._C.checkpoint
}
namespace nns::tokenizer {
void open(lua_State* L);  // nnscaler._C.tokenizer
}
namespace nns::data {
void open(lua_State* L);          // nnscaler._C.data
void open_prepare(lua_State* L);  // nnscaler._C.prepare
void open_workers(lua_State* L);  // nnscaler._C.workers
}  // namespace nns::data

extern "C" void nns_register_torch(lua_State* L);
