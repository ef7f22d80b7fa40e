// nnscaler._C.prepare: texts to files of tokens, for Lua.
#include <filesystem>

#include "data/prepare.h"
#include "script/state.h"
#include "tensor/modules.h"

namespace nns::data {
namespace {

using script::guarded;
using PreparationPtr = std::unique_ptr<Preparation>;
constexpr const char* kType = "nnscaler.Preparation";

Preparation& check(lua_State* L) {
  return *script::check_object<PreparationPtr>(L, 1, kType);
}

std::vector<std::string> strings(lua_State* L, int table, const char* key) {
  lua_getfield(L, table, key);
  luaL_checktype(L, -1, LUA_TTABLE);
  std::vector<std::string> out;
  for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    out.push_back(script::check_string(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return out;
}

// ({ tokenizer, inputs, out, field, piece_bytes, bos, eos, threads }) → preparation, not started
int make(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  PrepareOptions o;
  o.inputs = strings(L, 1, "inputs");
  o.out = script::field_string(L, 1, "out", "");
  o.field = script::field_string(L, 1, "field", "text");
  o.piece_bytes = script::field_int(L, 1, "piece_bytes", 64 << 20);
  o.bos = static_cast<int32_t>(script::field_int(L, 1, "bos", -1));
  o.eos = static_cast<int32_t>(script::field_int(L, 1, "eos", -1));
  o.threads = static_cast<int>(script::field_int(L, 1, "threads", 1));
  NNS_CHECK(o.piece_bytes > 0 && o.threads > 0 && o.threads < 4096, "{} bytes, {} threads",
            o.piece_bytes, o.threads);
  auto tokenizer = tokenizer::open_file(script::field_string(L, 1, "tokenizer", ""));
  script::push_object<PreparationPtr>(
      L, kType, std::make_unique<Preparation>(std::move(tokenizer), std::move(o)));
  return 1;
}
int start(lua_State* L) {
  check(L).start();
  return 0;
}
int wait(lua_State* L) {  // (seconds) → whether all is done
  lua_pushboolean(L, check(L).wait(script::check_number(L, 2)));
  return 1;
}
int progress(lua_State* L) {  // → bytes done, bytes in all
  lua_pushnumber(L, static_cast<double>(check(L).bytes_done()));
  lua_pushnumber(L, static_cast<double>(check(L).bytes_in_all()));
  return 2;
}
int pieces(lua_State* L) {  // → list of { file, documents, tokens }
  const auto& list = check(L).pieces();
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    lua_createtable(L, 0, 3);
    script::push_string(L, list[i].file);
    lua_setfield(L, -2, "file");
    lua_pushnumber(L, static_cast<double>(list[i].documents));
    lua_setfield(L, -2, "documents");
    lua_pushnumber(L, static_cast<double>(list[i].tokens));
    lua_setfield(L, -2, "tokens");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int state_of_file(lua_State* L) {  // (path) → text that differs when the file was changed
  const std::string path = script::check_string(L, 1);
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) fail(ErrorKind::usage, "[data.prepare] cannot read '{}': {}", path, ec.message());
  const auto time = std::filesystem::last_write_time(path, ec).time_since_epoch().count();
  script::push_string(L, fmt::format("{} bytes, {:x}", size, time));
  return 1;
}

int open_module(lua_State* L) {
  script::make_type<PreparationPtr>(L, kType,
                                    {{"start", guarded<start>},
                                     {"wait", guarded<wait>},
                                     {"progress", guarded<progress>},
                                     {"pieces", guarded<pieces>}});
  lua_createtable(L, 0, 2);
  script::set_functions(L, {{"new", guarded<make>}, {"state_of_file", guarded<state_of_file>}});
  return 1;
}

}  // namespace

void open_prepare(lua_State* L) {
  script::preload(L, "nnscaler._C.prepare", guarded<open_module>);
}

}  // namespace nns::data
