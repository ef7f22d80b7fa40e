// nnscaler._C.base: log, whole files, JSON, hashes, clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/build_id.h"
#include "base/file.h"
#include "base/log.h"
#include "base/types.h"
#include "base/version.h"
#include "bind/bind.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using script::check_string;
using script::guarded;
namespace fs = std::filesystem;

int log_write(lua_State* L) {  // (level, logger, text)
  static constexpr const char* names[] = {"debug", "info", "warning", "error", nullptr};
  const int level = luaL_checkoption(L, 1, nullptr, names);
  log::write(static_cast<log::Level>(level), check_string(L, 2), check_string(L, 3));
  return 0;
}
int log_level(lua_State* L) {  // (name)
  log::set_level(std::string_view(check_string(L, 1)));
  return 0;
}
int raw_line(lua_State* L) {  // (text)
  log::raw_line(check_string(L, 1));
  return 0;
}
int set_status(lua_State* L) {  // (text, columns): the line below the log; '' removes it
  log::set_status(check_string(L, 1), static_cast<int>(script::check_int(L, 2)));
  return 0;
}
int terminal_columns(lua_State* L) {  // of stderr's terminal; nil where it is none
  const int columns = log::terminal_columns();
  if (columns > 0)
    lua_pushinteger(L, columns);
  else
    lua_pushnil(L);
  return 1;
}
int file_read(lua_State* L) {  // (path [, area])
  script::push_string(L, read_file(check_string(L, 1), script::opt_string(L, 2, "file.read")));
  return 1;
}
int file_write(lua_State* L) {  // (path, bytes [, area]): atomic
  write_file_atomic(check_string(L, 1), check_string(L, 2), script::opt_string(L, 3, "file.write"));
  return 0;
}
int file_exists(lua_State* L) {  // (path) → "file" | "folder" | "device" (also a pipe) | nil
  std::error_code ec;
  const auto status = fs::status(check_string(L, 1), ec);
  if (fs::is_directory(status))
    lua_pushliteral(L, "folder");
  else if (fs::is_regular_file(status))
    lua_pushliteral(L, "file");
  else if (fs::exists(status))
    lua_pushliteral(L, "device");
  else
    lua_pushnil(L);
  return 1;
}
int make_folder(lua_State* L) {  // (path): with parents
  std::error_code ec;
  const std::string path = check_string(L, 1);
  fs::create_directories(path, ec);
  if (ec) fail(ErrorKind::state, "[file.folder] cannot make folder '{}': {}", path, ec.message());
  return 0;
}
int list_folder(lua_State* L) {  // (path) → sorted names
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(check_string(L, 1), ec))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  lua_createtable(L, static_cast<int>(names.size()), 0);
  for (size_t i = 0; i < names.size(); ++i) {
    script::push_string(L, names[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int clock_now(lua_State* L) {  // seconds, monotonic
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  lua_pushnumber(L, std::chrono::duration<double>(t).count());
  return 1;
}
// Seconds of processor time that the calling thread has taken.
int thread_clock(lua_State* L) {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  lua_pushnumber(L, static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
  return 1;
}
int hash_text(lua_State* L) {  // (text) → 16 hex digits
  script::push_string(L, hex(hash_bytes(check_string(L, 1))));
  return 1;
}

// --- JSON
// -------------------------------------------------------------------------------------------

// The one field of an object that stands for a text which JSON cannot hold: its bytes, each as the
// character of that number.
constexpr const char* kBytes = "$bytes";

// Whether the bytes are UTF-8, by nlohmann's own measure: its writer is what would refuse them.
bool is_utf8(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; })) return true;
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

nlohmann::ordered_json text_json(const std::string& text) {
  if (is_utf8(text)) return text;
  std::string characters;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) characters += static_cast<char>(0xc0 | byte >> 6);
    characters += static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3f) : byte);
  }
  return {{kBytes, characters}};
}

// The text that `text_json` made of bytes.
std::string bytes_of(const std::string& characters) {
  std::string text;
  for (size_t i = 0; i < characters.size(); ++i) {
    const auto c = static_cast<unsigned char>(characters[i]);
    if (c < 0x80 || i + 1 == characters.size())
      text += characters[i];
    else
      text += static_cast<char>((c & 0x3) << 6 | (characters[++i] & 0x3f));
  }
  return text;
}

nlohmann::ordered_json to_json(lua_State* L, int index, int depth) {
  if (depth > 100) fail(ErrorKind::state, "[json.encode] nested deeper than 100 levels");
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return nullptr;
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER: {
      const double x = lua_tonumber(L, index);
      if (std::floor(x) == x && std::fabs(x) < 9007199254740992.0) return static_cast<int64_t>(x);
      return x;
    }
    case LUA_TSTRING:
      return text_json(check_string(L, index));
    case LUA_TTABLE:
      break;
    default:
      fail(ErrorKind::state, "[json.encode] a {} has no JSON form", luaL_typename(L, index));
  }
  if (index < 0) index = lua_gettop(L) + index + 1;
  const size_t n = lua_objlen(L, index);
  if (n > 0) {
    auto list = nlohmann::ordered_json::array();
    for (size_t i = 1; i <= n; ++i) {
      lua_rawgeti(L, index, static_cast<int>(i));
      list.push_back(to_json(L, -1, depth + 1));
      lua_pop(L, 1);
    }
    return list;
  }
  std::vector<std::string> keys;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      fail(ErrorKind::state, "[json.encode] a key is a {}; expected strings", luaL_typename(L, -1));
    keys.push_back(check_string(L, -1));
    if (!is_utf8(keys.back()))
      fail(ErrorKind::state, "[json.encode] the key '{}' is not UTF-8", keys.back());
  }
  std::sort(keys.begin(), keys.end());
  auto object = nlohmann::ordered_json::object();
  for (const auto& key : keys) {
    script::push_string(L, key);
    lua_rawget(L, index);
    object[key] = to_json(L, -1, depth + 1);
    lua_pop(L, 1);
  }
  return object;
}

void push_json(lua_State* L, const nlohmann::json& j) {
  luaL_checkstack(L, 4, "JSON nested too deeply");
  if (j.is_object() && j.size() == 1 && j.contains(kBytes) && j[kBytes].is_string()) {
    script::push_string(L, bytes_of(j[kBytes].get_ref<const std::string&>()));
  } else if (j.is_object()) {
    lua_createtable(L, 0, static_cast<int>(j.size()));
    for (const auto& [key, value] : j.items()) {
      script::push_string(L, key);
      push_json(L, value);
      lua_rawset(L, -3);
    }
  } else if (j.is_array()) {
    lua_createtable(L, static_cast<int>(j.size()), 0);
    for (size_t i = 0; i < j.size(); ++i) {
      push_json(L, j[i]);
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
  } else if (j.is_string()) {
    script::push_string(L, j.get_ref<const std::string&>());
  } else if (j.is_boolean()) {
    lua_pushboolean(L, j.get<bool>());
  } else if (j.is_number()) {
    lua_pushnumber(L, j.get<double>());
  } else {
    lua_pushnil(L);
  }
}

int utf8(lua_State* L) {  // (text) → whether it is UTF-8
  lua_pushboolean(L, is_utf8(check_string(L, 1)));
  return 1;
}
int json_encode(lua_State* L) {  // (value [, indent]): keys sorted, numbers with 17 digits
  const int64_t indent = script::opt_int(L, 2, -1);
  lua_settop(L, 1);
  script::push_string(L, to_json(L, 1, 0).dump(static_cast<int>(indent)));
  return 1;
}
int json_decode(lua_State* L) {  // (text)
  const std::string text = check_string(L, 1);
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::state, "[json.decode] {}", e.what());
  }
  push_json(L, parsed);
  return 1;
}

std::string executable() {
  std::error_code ec;
  return fs::read_symlink("/proc/self/exe", ec).string();
}

int open(lua_State* L) {
  lua_createtable(L, 0, 24);
  script::set_functions(L, {{"log", guarded<log_write>},
                            {"log_level", guarded<log_level>},
                            {"raw_line", guarded<raw_line>},
                            {"set_status", guarded<set_status>},
                            {"terminal_columns", guarded<terminal_columns>},
                            {"file_read", guarded<file_read>},
                            {"file_write", guarded<file_write>},
                            {"file_exists", guarded<file_exists>},
                            {"make_folder", guarded<make_folder>},
                            {"list_folder", guarded<list_folder>},
                            {"clock", guarded<clock_now>},
                            {"thread_clock", guarded<thread_clock>},
                            {"hash", guarded<hash_text>},
                            {"is_utf8", guarded<utf8>},
                            {"json_encode", guarded<json_encode>},
                            {"json_decode", guarded<json_decode>}});
  for (const auto& [key, text] : {std::pair<const char*, std::string>{"version", kVersion},
                                  {"compiler", kCompiler},
                                  {"build", build_id()},
                                  {"executable", executable()}}) {
    script::push_string(L, text);
    lua_setfield(L, -2, key);
  }
  return 1;
}

}  // namespace

void open_base(lua_State* L) {
  script::preload(L, "nnscaler._C.base", guarded<open>);
}

}  // namespace nns::bind
