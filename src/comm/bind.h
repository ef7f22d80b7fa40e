// The communicator of a rank, as its Lua machine sees it.
#pragma once

#include <memory>

#include "comm/group.h"

struct lua_State;

namespace nns::comm {

// Makes `communicator` the one that scripts of this machine get.
void set_current(lua_State* L, std::shared_ptr<Communicator> communicator);

}  // namespace nns::comm
