#include "bind/bind.h"

#include "script/library.h"

namespace nns::bind {

std::vector<std::string> strings_at(lua_State* L, int index) {
  std::vector<std::string> list;
  if (!lua_istable(L, index)) return list;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    list.push_back(script::check_string(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return list;
}

namespace {

void open_core(lua_State* L) {
  open_base(L);
  open_job(L);
  open_graph(L);
  open_plan(L);
  open_lower(L);
  open_solve(L);
  open_process(L);
  open_launch(L);
}

[[maybe_unused]] const bool kSet = [] {
  script::set_core_opener(open_core);
  return true;
}();

}  // namespace

}  // namespace nns::bind
