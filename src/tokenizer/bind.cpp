// nnscaler._C.tokenizer: tokenizers for Lua.
#include "script/state.h"
#include "tensor/modules.h"
#include "tokenizer/tokenizer.h"

namespace nns::tokenizer {
namespace {

using script::guarded;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;
constexpr const char* kType = "nnscaler.Tokenizer";

const Tokenizer& check(lua_State* L) {
  return *script::check_object<TokenizerPtr>(L, 1, kType);
}

int read(lua_State* L) {  // (path) → tokenizer, path of its file
  const std::string file = find_file(script::check_string(L, 1));
  script::push_object<TokenizerPtr>(L, kType, open_file(file));
  script::push_string(L, file);
  return 2;
}
int size(lua_State* L) {  // → ids are below
  lua_pushnumber(L, static_cast<double>(check(L).size()));
  return 1;
}
int encode(lua_State* L) {  // (text [, special = true]) → list of ids
  const bool special = lua_isnoneornil(L, 3) || script::check_boolean(L, 3);
  std::vector<int32_t> ids;
  check(L).encode(script::check_string(L, 2), {.special = special}, ids);
  script::push_ints(L, {ids.begin(), ids.end()});
  return 1;
}
int decode(lua_State* L) {  // (list of ids) → bytes, without special tokens
  script::push_string(L, check(L).decode(script::check_ints(L, 2)));
  return 1;
}
int id(lua_State* L) {  // (token) → id, or nil
  const auto found = check(L).id_of(script::check_string(L, 2));
  if (!found) return 0;
  lua_pushnumber(L, *found);
  return 1;
}

int open_module(lua_State* L) {
  script::make_type<TokenizerPtr>(L, kType,
                                  {{"size", guarded<size>},
                                   {"encode", guarded<encode>},
                                   {"decode", guarded<decode>},
                                   {"id", guarded<id>}});
  lua_createtable(L, 0, 1);
  script::set_functions(L, {{"read", guarded<read>}});
  return 1;
}

}  // namespace

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.tokenizer", guarded<open_module>);
}

}  // namespace nns::tokenizer
