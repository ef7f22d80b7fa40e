// nnscaler._C.launch: who started this process among how many.
#include "launch/launch.h"
#include "base/log.h"
#include "bind/bind.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using script::guarded;

// () → { launcher=, rank=, size=, local_rank=, local_size= }; from now on the log is this rank's.
int read(lua_State* L) {
  const launch::Launch found = launch::read_launch();
  log::set_rank(found.rank, found.size);
  lua_createtable(L, 0, 5);
  script::push_string(L, found.launcher);
  lua_setfield(L, -2, "launcher");
  const std::pair<const char*, int> numbers[] = {{"rank", found.rank},
                                                 {"size", found.size},
                                                 {"local_rank", found.local_rank},
                                                 {"local_size", found.local_size}};
  for (const auto& [name, value] : numbers) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, name);
  }
  return 1;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 4);
  script::set_functions(L, {{"read", guarded<read>}});
  return 1;
}

}  // namespace

void open_launch(lua_State* L) {
  script::preload(L, "nnscaler._C.launch", guarded<open>);
}

}  // namespace nns::bind
