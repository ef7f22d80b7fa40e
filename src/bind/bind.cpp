#include "bind/bind.h"

namespace nns::bind {

void open_core(lua_State* L) {
  open_base(L);
  open_job(L);
  open_graph(L);
  open_plan(L);
  open_lower(L);
  open_process(L);
  open_launch(L);
}

}  // namespace nns::bind
