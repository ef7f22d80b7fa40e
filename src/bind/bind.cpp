#include "bind/bind.h"

namespace nns::bind {

void open_core(lua_State* L) {
  open_base(L);
}

}  // namespace nns::bind
