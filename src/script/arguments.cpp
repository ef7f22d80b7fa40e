// Checked access to the arguments and tables that Lua passes.
#include <cmath>

#include "script/state.h"

namespace nns::script {
namespace {

constexpr double kExact = 9007199254740992.0;  // 2^53

[[noreturn]] void field_error(const char* key, const char* expected, const char* got) {
  fail(ErrorKind::usage, "[script.argument] field '{}' is a {}; expected {}", key, got, expected);
}

}  // namespace

int64_t check_int(lua_State* L, int index) {
  const double x = luaL_checknumber(L, index);
  if (std::floor(x) != x || std::fabs(x) > kExact) luaL_argerror(L, index, "integer expected");
  return static_cast<int64_t>(x);
}

double check_number(lua_State* L, int index) {
  return luaL_checknumber(L, index);
}

std::string check_string(lua_State* L, int index) {
  size_t n = 0;
  const char* s = luaL_checklstring(L, index, &n);
  return {s, n};
}

bool check_boolean(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TBOOLEAN);
  return lua_toboolean(L, index) != 0;
}

std::vector<int64_t> check_ints(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<int64_t> out(lua_objlen(L, index));
  for (size_t i = 0; i < out.size(); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i + 1));
    const double x = lua_tonumber(L, -1);
    if (!lua_isnumber(L, -1) || std::floor(x) != x)
      luaL_argerror(L, index, "list of integers expected");
    out[i] = static_cast<int64_t>(x);
    lua_pop(L, 1);
  }
  return out;
}

int64_t opt_int(lua_State* L, int index, int64_t fallback) {
  return lua_isnoneornil(L, index) ? fallback : check_int(L, index);
}

std::string opt_string(lua_State* L, int index, std::string_view fallback) {
  return lua_isnoneornil(L, index) ? std::string(fallback) : check_string(L, index);
}

int64_t field_int(lua_State* L, int index, const char* key, int64_t fallback) {
  const double x = field_number(L, index, key, static_cast<double>(fallback));
  if (std::floor(x) != x) field_error(key, "an integer", "fraction");
  return static_cast<int64_t>(x);
}

double field_number(lua_State* L, int index, const char* key, double fallback) {
  lua_getfield(L, index, key);
  const int type = lua_type(L, -1);
  const double x = type == LUA_TNIL ? fallback : lua_tonumber(L, -1);
  if (type != LUA_TNIL && type != LUA_TNUMBER) field_error(key, "a number", luaL_typename(L, -1));
  lua_pop(L, 1);
  return x;
}

std::string field_string(lua_State* L, int index, const char* key, std::string_view fallback) {
  lua_getfield(L, index, key);
  const int type = lua_type(L, -1);
  std::string out(fallback);
  if (type == LUA_TSTRING) {
    size_t n = 0;
    const char* s = lua_tolstring(L, -1, &n);
    out.assign(s, n);
  } else if (type != LUA_TNIL) {
    field_error(key, "a string", luaL_typename(L, -1));
  }
  lua_pop(L, 1);
  return out;
}

bool field_boolean(lua_State* L, int index, const char* key, bool fallback) {
  lua_getfield(L, index, key);
  const int type = lua_type(L, -1);
  if (type != LUA_TNIL && type != LUA_TBOOLEAN)
    field_error(key, "true or false", luaL_typename(L, -1));
  const bool out = type == LUA_TNIL ? fallback : lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return out;
}

void push_string(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

void push_ints(lua_State* L, const std::vector<int64_t>& values) {
  lua_createtable(L, static_cast<int>(values.size()), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    lua_pushnumber(L, static_cast<double>(values[i]));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void set_functions(lua_State* L, std::initializer_list<luaL_Reg> functions) {
  for (const luaL_Reg& f : functions) {
    lua_pushcfunction(L, f.func);
    lua_setfield(L, -2, f.name);
  }
}

void preload(lua_State* L, const char* name, lua_CFunction open) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, open);
  lua_setfield(L, -2, name);
  lua_pop(L, 2);
}

Place caller_place(lua_State* L) {
  // Plumbing is library code whose lines tell the user nothing about their model.
  static constexpr std::string_view plumbing[] = {"nnscaler/nn/", "nnscaler/tensor",
                                                  "nnscaler/functional"};
  Place first;
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame) == 1; ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0 || frame.source[0] != '@') continue;
    const std::string_view source = frame.source + 1;
    if (first.line == 0) first = {std::string(source), frame.currentline};
    bool skip = false;
    for (auto part : plumbing) skip = skip || source.find(part) != std::string_view::npos;
    if (!skip) return {std::string(source), frame.currentline};
  }
  return first;
}

}  // namespace nns::script
