// The LuaJIT machine. One State belongs to one thread. Everything that enters Lua goes through
// State::call (one pcall with traceback), everything that Lua calls in C++ through `guarded` (one
// trampoline that turns C++ exceptions into Lua errors).
#pragma once

#include <lua.hpp>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"

namespace nns::script {

class State {
 public:
  // Opens the standard libraries, our loaders and strict globals. Throws an internal Error when
  // LuaJIT was built without 64-bit garbage collection.
  State();
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  lua_State* raw() const { return L_; }

  // Calls the function below `nargs` arguments on the stack; leaves `nresults` results. A Lua error
  // is thrown as nns::Error with its kind, hint and traceback. Throws when called from a thread
  // other than the one that made the State.
  void call(int nargs, int nresults) { call(L_, nargs, nresults); }
  // The same from C++ that Lua called on L, which may be a coroutine.
  static void call(lua_State* L, int nargs, int nresults);

  // Pushes the compiled chunk of a text file (named @path) or throws; bytecode is refused.
  void load_file(const std::string& path) { load_file(L_, path); }
  void load_text(std::string_view text, const std::string& chunk_name) {
    load_text(L_, text, chunk_name);
  }
  static void load_file(lua_State* L, const std::string& path);
  static void load_text(lua_State* L, std::string_view text, const std::string& chunk_name);
  // Pushes what `require name` returns.
  void require(const std::string& name);
  // Puts a folder first in the search path of `require` (job folder).
  void add_search_folder(const std::string& folder);

  // Returns the State that owns L (also for coroutines).
  static State& of(lua_State* L);

 private:
  lua_State* L_;
  std::thread::id owner_;
};

// A counted reference to a Lua value in the registry. Belongs to the State's thread.
class Ref {
 public:
  Ref() = default;
  // Takes the value at the top of the stack and pops it.
  static Ref pop(lua_State* L);
  Ref(Ref&& other) noexcept;
  Ref& operator=(Ref&& other) noexcept;
  ~Ref();

  explicit operator bool() const { return L_ != nullptr; }
  void push(lua_State* L) const;
  void reset() noexcept;
  // How many references are alive in this process (leak tests).
  static int64_t live();

 private:
  lua_State* L_ = nullptr;  // main state
  int ref_ = LUA_NOREF;
};

// --- the trampoline -----------------------------------------------------------------------------

// Pushes an error table {message, kind, hint, traceback?} with __tostring.
void push_error(lua_State* L, const Error& error);
// Throws what the Lua error value at `index` says.
[[noreturn]] void throw_lua_error(lua_State* L, int index);

// Pushes the error table of any exception, with the Lua stack of L: it may cross coroutines and
// pcalls before somebody prints it.
void push_exception(lua_State* L, const std::exception& e);

template <lua_CFunction F>
int guarded(lua_State* L) {
  try {
    return F(L);
  } catch (const std::exception& e) {  // a Lua error is not a std::exception and passes
    push_exception(L, e);
  }
  return lua_error(L);
}

// Registers functions into the table at the top of the stack: set_functions(L, {{"add",
// guarded<add>}}).
void set_functions(lua_State* L, std::initializer_list<luaL_Reg> functions);

// Makes `require(name)` call `open` (which leaves one table). Modules of C++ are named
// nnscaler._C.X.
void preload(lua_State* L, const char* name, lua_CFunction open);

// --- checked access to arguments
// ------------------------------------------------------------------

// Each raises a Lua argument error that says what was expected.
int64_t check_int(lua_State* L, int index);  // integral, |x| < 2^53
double check_number(lua_State* L, int index);
std::string check_string(lua_State* L, int index);
bool check_boolean(lua_State* L, int index);
std::vector<int64_t> check_ints(lua_State* L, int index);  // list table of integers
int64_t opt_int(lua_State* L, int index, int64_t fallback);
std::string opt_string(lua_State* L, int index, std::string_view fallback);
// Reads t[key] of the table at `index`; nil gives the fallback; another type is an error naming
// key.
int64_t field_int(lua_State* L, int index, const char* key, int64_t fallback);
double field_number(lua_State* L, int index, const char* key, double fallback);
std::string field_string(lua_State* L, int index, const char* key, std::string_view fallback);
bool field_boolean(lua_State* L, int index, const char* key, bool fallback);

void push_string(lua_State* L, std::string_view text);
void push_ints(lua_State* L, const std::vector<int64_t>& values);

// --- userdata
// -------------------------------------------------------------------------------------

// A C++ object as userdata under metatable `type` ("nnscaler.Graph"). The collector destroys it.
template <class T>
T& push_object(lua_State* L, const char* type, T value) {
  void* block = lua_newuserdata(L, sizeof(T));
  T* object = new (block) T(std::move(value));
  luaL_getmetatable(L, type);
  lua_setmetatable(L, -2);
  return *object;
}
template <class T>
T& check_object(lua_State* L, int index, const char* type) {
  return *static_cast<T*>(luaL_checkudata(L, index, type));
}
template <class T>
int destroy_object(lua_State* L) {  // __gc: never throws, never calls Lua
  static_cast<T*>(lua_touserdata(L, 1))->~T();
  return 0;
}
// Creates metatable `type` with methods, __gc and __index = methods; leaves the stack as it was.
template <class T>
void make_type(lua_State* L, const char* type, std::initializer_list<luaL_Reg> methods) {
  luaL_newmetatable(L, type);
  set_functions(L, methods);
  lua_pushcfunction(L, &destroy_object<T>);
  lua_setfield(L, -2, "__gc");
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  push_string(L, type);
  lua_setfield(L, -2, "__name");
  lua_pop(L, 1);
}

// Place of the innermost Lua frame outside our library's plumbing (lua/nnscaler/nn, tensor, …):
// the line the user wrote. Returns file and line, or {"", 0}.
struct Place {
  std::string file;
  int line = 0;
};
Place caller_place(lua_State* L);

}  // namespace nns::script
