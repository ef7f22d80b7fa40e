// nnscaler._C.launch: who started this process among how many, the watch over the ranks, and the
// supervisor of `-n`.
#include "launch/launch.h"

#include <cstdlib>

#include "base/log.h"
#include "bind/bind.h"
#include "launch/link.h"
#include "launch/slot.h"
#include "launch/supervisor.h"
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

// (): tells the supervisor that started this process, if one did, that it lives.
int report_to_supervisor(lua_State*) {
  const char* endpoint = std::getenv(launch::kWatchVariable);
  if (endpoint == nullptr) return 0;
  const launch::Launch found = launch::read_launch();
  launch::watch(launch::Endpoint::parse(endpoint), found.rank, found.size);
  return 0;
}
int is_watched(lua_State* L) {
  lua_pushboolean(L, launch::is_watched());
  return 1;
}
int host_watch(lua_State* L) {  // (beat_s) → where the other ranks find the hub in this process
  const launch::Launch found = launch::read_launch();
  script::push_string(
      L, launch::host_watch(found.rank, found.size, script::check_number(L, 1)).text());
  return 1;
}
int watch(lua_State* L) {  // (endpoint)
  const launch::Launch found = launch::read_launch();
  launch::watch(launch::Endpoint::parse(script::check_string(L, 1)), found.rank, found.size);
  return 0;
}
int limit_calls(lua_State* L) {  // (seconds)
  launch::limit_calls(script::check_number(L, 1));
  return 0;
}
int at_step(lua_State* L) {  // (step from 1): where this rank is, for who has to say it
  launch::slot().step = script::check_int(L, 1);
  launch::slot().phase = launch::Phase::step;
  return 0;
}
int at_phase(lua_State* L) {  // (phase)
  static constexpr const char* names[] = {"setup",  "step",       "forward", "backward",
                                          "update", "evaluation", "save",    nullptr};
  launch::slot().phase = static_cast<launch::Phase>(luaL_checkoption(L, 1, nullptr, names));
  return 0;
}
int finish(lua_State*) {  // (): the common end, after a barrier
  launch::finish();
  return 0;
}
// ({ ranks=, beat_s=, program=, arguments=, meets_by_tcp= }) → exit code
int supervise(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  launch::Supervision what;
  what.ranks = static_cast<int>(script::field_int(L, 1, "ranks", 1));
  what.beat_s = script::field_number(L, 1, "beat_s", 1);
  what.program = script::field_string(L, 1, "program", "");
  what.meets_by_tcp = script::field_boolean(L, 1, "meets_by_tcp", false);
  lua_getfield(L, 1, "arguments");
  what.arguments = strings_at(L, lua_gettop(L));
  lua_pushinteger(L, launch::supervise(what));
  return 1;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 10);
  script::set_functions(L, {{"read", guarded<read>},
                            {"report_to_supervisor", guarded<report_to_supervisor>},
                            {"is_watched", guarded<is_watched>},
                            {"host_watch", guarded<host_watch>},
                            {"watch", guarded<watch>},
                            {"limit_calls", guarded<limit_calls>},
                            {"at_step", guarded<at_step>},
                            {"at_phase", guarded<at_phase>},
                            {"finish", guarded<finish>},
                            {"supervise", guarded<supervise>}});
  return 1;
}

}  // namespace

void open_launch(lua_State* L) {
  script::preload(L, "nnscaler._C.launch", guarded<open>);
}

}  // namespace nns::bind
