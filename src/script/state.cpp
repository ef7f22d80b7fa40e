// Life of the machine, the one pcall, loading of text chunks.
#include "script/state.h"

#include <atomic>
#include <cstring>

#include "base/file.h"
#include "script/library.h"

namespace nns::script {
namespace {

constexpr const char* kStateKey = "nnscaler.state";
constexpr const char* kErrorType = "nnscaler.Error";
std::atomic<int64_t> g_live_refs{0};

std::string string_field(lua_State* L, int index, const char* key) {
  lua_pushstring(L, key);
  lua_rawget(L, index < 0 ? index - 1 : index);
  size_t n = 0;
  const char* s = lua_tolstring(L, -1, &n);
  std::string out = s != nullptr ? std::string(s, n) : std::string();
  lua_pop(L, 1);
  return out;
}

int error_to_string(lua_State* L) {  // [error]
  const std::string hint = string_field(L, 1, "hint");
  push_string(L, string_field(L, 1, "message") + (hint.empty() ? "" : "\nhint: " + hint));
  return 1;
}

bool is_error(lua_State* L, int index) {
  if (!lua_istable(L, index) || lua_getmetatable(L, index) == 0) return false;
  luaL_getmetatable(L, kErrorType);
  const bool same = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return same;
}

// Text of any error value; its own __tostring may fail and is not let out.
std::string text_of(lua_State* L, int index) {
  if (index < 0) index = lua_gettop(L) + index + 1;
  std::string out = fmt::format("(the error value is a {})", luaL_typename(L, index));
  if (lua_isstring(L, index)) {
    out = lua_tostring(L, index);
  } else if (luaL_getmetafield(L, index, "__tostring") != 0) {
    lua_pushvalue(L, index);
    const bool done = lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1);
    if (done) out = lua_tostring(L, -1);
    lua_pop(L, 1);
  } else if (lua_istable(L, index)) {
    const std::string message = string_field(L, index, "message");
    if (!message.empty()) out = message;
  }
  return out;
}

// Message handler: makes every error one of ours, with the traceback of where it was raised.
int on_error(lua_State* L) {  // [error]
  if (!is_error(L, 1)) {
    push_error(L, Error(ErrorKind::model, text_of(L, 1)));
    lua_replace(L, 1);
  }
  if (string_field(L, 1, "traceback").empty()) {
    luaL_traceback(L, L, nullptr, 1);
    lua_setfield(L, 1, "traceback");
  }
  lua_settop(L, 1);
  return 1;
}

}  // namespace

State::State() : L_(luaL_newstate()), owner_(std::this_thread::get_id()) {
  if (L_ == nullptr) fail(ErrorKind::internal, "[script.open] no memory for a Lua state");
  luaL_openlibs(L_);
  lua_pushlightuserdata(L_, this);
  lua_setfield(L_, LUA_REGISTRYINDEX, kStateKey);
  luaL_newmetatable(L_, kErrorType);
  lua_pushcfunction(L_, &error_to_string);
  lua_setfield(L_, -2, "__tostring");
  lua_pop(L_, 1);
  open_library(*this);
}

State::~State() {
  lua_close(L_);
}

State& State::of(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, kStateKey);
  auto* state = static_cast<State*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  return *state;
}

void State::call(lua_State* L, int nargs, int nresults) {
  NNS_CHECK(std::this_thread::get_id() == of(L).owner_, "Lua state entered from a foreign thread");
  const int function = lua_gettop(L) - nargs;
  lua_pushcfunction(L, &on_error);
  lua_insert(L, function);  // [handler, function, args…]
  const int status = lua_pcall(L, nargs, nresults, function);
  lua_remove(L, function);
  if (status == 0) return;
  throw_lua_error(L, lua_gettop(L));
}

void State::load_text(lua_State* L, std::string_view text, const std::string& chunk_name) {
  struct Piece {
    std::string_view text;
  } piece{text};
  const auto read = [](lua_State*, void* data, size_t* size) -> const char* {
    auto* p = static_cast<Piece*>(data);
    *size = p->text.size();
    const char* start = p->text.empty() ? nullptr : p->text.data();
    p->text = {};
    return start;
  };
  if (!text.empty() && text[0] == '\x1b')
    throw Error(ErrorKind::usage,
                fmt::format("[script.load] '{}' is Lua bytecode; expected source text",
                            chunk_name.substr(chunk_name.empty() || chunk_name[0] != '@' ? 0 : 1)),
                "pass the .lua source file");
  luaL_checkstack(L, 2, "no room to load a chunk");
  if (lua_loadx(L, read, &piece, chunk_name.c_str(), "t") != 0) {
    const std::string message = lua_tostring(L, -1);
    lua_pop(L, 1);
    fail(ErrorKind::usage, "[script.load] {}", message);
  }
}

void State::load_file(lua_State* L, const std::string& path) {
  std::string text = read_file(path, "script.load");
  if (text.rfind("#!", 0) == 0) text.insert(0, "--");
  load_text(L, text, "@" + path);
}

void State::require(const std::string& name) {
  lua_getglobal(L_, "require");
  push_string(L_, name);
  call(1, 1);
}

void State::add_search_folder(const std::string& folder) {
  lua_getglobal(L_, "package");
  const std::string path = string_field(L_, -1, "path");
  push_string(L_, fmt::format("{0}/?.lua;{0}/?/init.lua;{1}", folder, path));
  lua_setfield(L_, -2, "path");
  lua_pop(L_, 1);
}

// --- references
// -----------------------------------------------------------------------------------

Ref Ref::pop(lua_State* L) {
  Ref ref;
  ref.L_ = State::of(L).raw();
  ref.ref_ = luaL_ref(L, LUA_REGISTRYINDEX);
  ++g_live_refs;
  return ref;
}

Ref::Ref(Ref&& other) noexcept : L_(other.L_), ref_(other.ref_) {
  other.L_ = nullptr;
}

Ref& Ref::operator=(Ref&& other) noexcept {
  std::swap(L_, other.L_);
  std::swap(ref_, other.ref_);
  return *this;
}

Ref::~Ref() {
  reset();
}

void Ref::reset() noexcept {
  if (L_ == nullptr) return;
  luaL_unref(L_, LUA_REGISTRYINDEX, ref_);
  L_ = nullptr;
  --g_live_refs;
}

void Ref::push(lua_State* L) const {
  lua_rawgeti(L, LUA_REGISTRYINDEX, ref_);
}

int64_t Ref::live() {
  return g_live_refs;
}

// --- errors
// ---------------------------------------------------------------------------------------

void push_error(lua_State* L, const Error& error) {
  lua_createtable(L, 0, 4);
  push_string(L, error.message());
  lua_setfield(L, -2, "message");
  push_string(L, name_of(error.kind()));
  lua_setfield(L, -2, "kind");
  if (!error.hint().empty()) {
    push_string(L, error.hint());
    lua_setfield(L, -2, "hint");
  }
  if (!error.traceback().empty()) {
    push_string(L, error.traceback());
    lua_setfield(L, -2, "traceback");
  }
  luaL_getmetatable(L, kErrorType);
  lua_setmetatable(L, -2);
}

namespace {

// What an exception says. LibTorch's own texts go on with a C++ stack.
std::string cause_of(const std::exception& e) {
  const std::string text = e.what();
  return debugging() ? text : text.substr(0, text.find("\nException raised from"));
}

}  // namespace

void push_exception(lua_State* L, const std::exception& e) {
  if (const auto* own = dynamic_cast<const Error*>(&e))
    push_error(L, *own);
  else
    push_error(L, Error(ErrorKind::model, cause_of(e)));
  if (!string_field(L, -1, "traceback").empty()) return;
  luaL_traceback(L, L, nullptr, 0);
  lua_setfield(L, -2, "traceback");
}

void throw_lua_error(lua_State* L, int index) {
  if (!is_error(L, index)) {
    // No handler ran: memory or the C stack is at its end.
    const std::string message = text_of(L, index);
    lua_settop(L, index - 1);
    throw Error(ErrorKind::model, message);
  }
  const std::string kind = string_field(L, index, "kind");
  Error error(kind.empty() ? ErrorKind::model : error_kind(kind), string_field(L, index, "message"),
              string_field(L, index, "hint"), string_field(L, index, "traceback"));
  lua_settop(L, index - 1);
  throw error;
}

}  // namespace nns::script
