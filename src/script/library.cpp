#include "script/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "launch/link.h"

namespace nns::script {
namespace {

namespace fs = std::filesystem;

void (*core_opener)(lua_State*) = nullptr;

// Folder from which the library is read while developing, or "".
std::string disk_library() {
  const char* folder = std::getenv("NNSCALER_LUA_PATH");
  return folder != nullptr ? folder : "";
}

// Searcher: nnscaler.X from NNSCALER_LUA_PATH or from the binary.
int find_embedded(lua_State* L) {  // [name] → loader | message
  const std::string name = check_string(L, 1);
  const std::string disk = disk_library();
  if (!disk.empty()) {
    std::string path = name;
    for (char& c : path)
      if (c == '.') c = '/';
    for (const std::string& file :
         {fmt::format("{}/{}.lua", disk, path), fmt::format("{}/{}/init.lua", disk, path)})
      if (fs::is_regular_file(file)) {
        State::load_text(L, read_file(file, "script.require"), "@" + file);
        return 1;
      }
  }
  for (size_t i = 0; i < kEmbeddedCount; ++i)
    if (name == kEmbedded[i].module) {
      State::load_text(L, {kEmbedded[i].text, kEmbedded[i].size},
                       fmt::format("@{}", kEmbedded[i].path));
      return 1;
    }
  lua_pushfstring(L, "\n\tno module '%s' in the nnscaler library", name.c_str());
  return 1;
}

// Searcher: Lua files on package.path, as text only.
int find_file(lua_State* L) {  // [name] → loader | message
  std::string name = check_string(L, 1);
  lua_getglobal(L, "package");
  const std::string templates = field_string(L, -1, "path", "");
  lua_pop(L, 1);
  std::string as_path = name;
  for (char& c : as_path)
    if (c == '.') c = '/';
  std::string tried;
  size_t start = 0;
  while (start <= templates.size()) {
    size_t end = templates.find(';', start);
    if (end == std::string::npos) end = templates.size();
    std::string file = templates.substr(start, end - start);
    start = end + 1;
    if (file.empty()) continue;
    for (size_t at; (at = file.find('?')) != std::string::npos;) file.replace(at, 1, as_path);
    if (fs::is_regular_file(file)) {
      State::load_file(L, file);
      return 1;
    }
    tried += fmt::format("\n\tno file '{}'", file);
  }
  push_string(L, tried);
  return 1;
}

// Searcher: the C++ modules that need LibTorch.
int find_torch(lua_State* L) {  // [name] → loader | message
  const std::string name = check_string(L, 1);
  if (name.rfind("nnscaler._C.", 0) != 0) {
    lua_pushliteral(L, "");
    return 1;
  }
  open_torch(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_getfield(L, -1, name.c_str());
  if (lua_isnil(L, -1)) lua_pushfstring(L, "\n\tno C++ module '%s'", name.c_str());
  return 1;
}

int print_line(lua_State* L) {  // whole lines, one write
  std::string line;
  const int n = lua_gettop(L);
  for (int i = 1; i <= n; ++i) {
    if (i > 1) line += '\t';
    lua_getglobal(L, "tostring");
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    size_t size = 0;
    const char* s = lua_tolstring(L, -1, &size);
    if (s == nullptr) return luaL_error(L, "'tostring' must return a string to 'print'");
    line.append(s, size);
    lua_pop(L, 1);
  }
  line += '\n';
  const log::Aside aside;
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t w = ::write(STDOUT_FILENO, line.data() + done, line.size() - done);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0)
      fail(ErrorKind::state, "[script.print] cannot write to stdout: {}", std::strerror(errno));
    done += static_cast<size_t>(w);
  }
  return 0;
}

// nil and the message, as load and loadfile have it.
int refuse(lua_State* L, const Error& e) {
  static constexpr std::string_view area = "[script.load] ";
  const std::string& message = e.message();
  lua_pushnil(L);
  push_string(L, message.rfind(area, 0) == 0 ? message.substr(area.size()) : message);
  return 2;
}

int load_chunk(lua_State* L) {  // load(text or function [, name]) with text mode only
  std::string text;
  if (lua_isstring(L, 1)) {
    text = check_string(L, 1);
  } else {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    while (true) {
      lua_pushvalue(L, 1);
      lua_call(L, 0, 1);
      size_t n = 0;
      const char* s = lua_tolstring(L, -1, &n);
      if (s == nullptr || n == 0) break;
      text.append(s, n);
      lua_pop(L, 1);
    }
  }
  const std::string name = opt_string(L, 2, text);
  try {
    State::load_text(L, text, name);
    if (lua_istable(L, 4)) {
      lua_pushvalue(L, 4);
      lua_setfenv(L, -2);
    }
    return 1;
  } catch (const Error& e) {
    return refuse(L, e);
  }
}

int load_path(lua_State* L) {  // loadfile(path)
  try {
    State::load_file(L, check_string(L, 1));
    return 1;
  } catch (const Error& e) {
    return refuse(L, e);
  }
}

int do_path(lua_State* L) {  // dofile(path)
  const int top = lua_gettop(L);
  State::load_file(L, check_string(L, 1));
  lua_call(L, 0, LUA_MULTRET);
  return lua_gettop(L) - top;
}

// os.exit(code): ends files, threads and tensors of this state in order before the process leaves.
int exit_process(lua_State* L) {
  int code = EXIT_SUCCESS;
  if (lua_isboolean(L, 1))
    code = lua_toboolean(L, 1) != 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  else if (!lua_isnoneornil(L, 1))
    code = static_cast<int>(check_int(L, 1));
  std::fflush(nullptr);
  // The others would wait for this rank for ever.
  launch::leave_failed(
      Error(ErrorKind::state, fmt::format("[run.exit] os.exit({}) before the common end", code),
            "let every rank return from the run; trainer:stop() ends it early on all"),
      nullptr);
  // In a rank that is a thread others still compute: no destructor of the process may run.
  if (::getpid() != ::gettid()) ::_exit(code);
  lua_close(State::of(L).raw());
  std::exit(code);
}

// A coroutine's stack is gone when its error arrives in the one that resumed it.
constexpr const char* kCoroutines = R"(
local Error = debug.getregistry()['nnscaler.Error']
local create, resume, traceback = coroutine.create, coroutine.resume, debug.traceback

local function pass(co, ok, ...)
  if ok then return ... end
  local err = ...
  if type(err) == 'string' then
    err = setmetatable({ kind = 'model', message = err }, Error)
  end
  if type(err) == 'table' and getmetatable(err) == Error and not err.traceback then
    err.traceback = traceback(co)
  end
  error(err, 0)
end

function coroutine.wrap(f)
  local co = create(f)
  return function(...) return pass(co, resume(co, ...)) end
end
)";

// Reading or writing an undeclared global is an error: a misspelt name must not be nil.
constexpr const char* kStrict = R"(
local declared = {}
for k in next, _G do declared[k] = true end
setmetatable(_G, {
  __newindex = function(t, k, v)
    local caller = debug.getinfo(2, 'S')
    if not declared[k] and caller and caller.what ~= 'C' then
      error(("undeclared global '%s' written; write 'local %s'"):format(tostring(k), tostring(k)), 2)
    end
    declared[k] = true
    rawset(t, k, v)
  end,
  __index = function(_, k)
    if not declared[k] then
      error(("undeclared global '%s' read"):format(tostring(k)), 2)
    end
  end,
})
)";

}  // namespace

void set_core_opener(void (*open)(lua_State*)) {
  core_opener = open;
}

void open_library(State& state) {
  lua_State* L = state.raw();
  // Without 64-bit references the heap ends at 2 GB and long runs die of it.
  state.load_text("return require('ffi').abi('gc64')", "=gc64");
  state.call(0, 1);
  NNS_CHECK(lua_toboolean(L, -1), "LuaJIT is built without GC64");
  lua_pop(L, 1);

  lua_getglobal(L, "package");
  push_string(L, "./?.lua;./?/init.lua;/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua");
  lua_setfield(L, -2, "path");
  // package.loaders = {preload, library, torch, files, C files}
  lua_getfield(L, -1, "loaders");
  lua_rawgeti(L, -1, 1);
  lua_rawgeti(L, -2, 3);
  lua_createtable(L, 5, 0);  // [package, loaders, preload, clib, new]
  lua_pushvalue(L, -3);
  lua_rawseti(L, -2, 1);
  int i = 2;
  for (lua_CFunction f : {&guarded<find_embedded>, &guarded<find_torch>, &guarded<find_file>}) {
    lua_pushcfunction(L, f);
    lua_rawseti(L, -2, i++);
  }
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, i);
  lua_setfield(L, -5, "loaders");
  lua_settop(L, 0);

  lua_pushvalue(L, LUA_GLOBALSINDEX);
  set_functions(L, {{"print", guarded<print_line>},
                    {"load", guarded<load_chunk>},
                    {"loadstring", guarded<load_chunk>},
                    {"loadfile", guarded<load_path>},
                    {"dofile", guarded<do_path>}});
  lua_settop(L, 0);

  lua_getglobal(L, "os");
  set_functions(L, {{"exit", guarded<exit_process>}});
  lua_settop(L, 0);

  if (core_opener != nullptr) core_opener(L);
  state.load_text(kCoroutines, "=coroutines");
  state.call(0, 0);
  state.load_text(kStrict, "=strict");
  state.call(0, 0);
}

void open_torch(lua_State* L) {
  using Register = void (*)(lua_State*);
  static const Register open = [] {
    Dl_info self{};
    dladdr(reinterpret_cast<const void*>(&open_library), &self);
    const auto folder = fs::path(self.dli_fname != nullptr ? self.dli_fname : "").parent_path();
    const auto path = folder / "libnnscaler_torch.so";
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr)
      throw Error(ErrorKind::state,
                  fmt::format("[script.torch] cannot open LibTorch: {}", dlerror()),
                  "run `make setup`, then build again");
    void* symbol = dlsym(handle, "nns_register_torch");
    NNS_CHECK(symbol != nullptr, "libnnscaler_torch.so has no nns_register_torch");
    return reinterpret_cast<Register>(symbol);
  }();
  lua_getfield(L, LUA_REGISTRYINDEX, "nnscaler.torch");
  const bool done = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  if (done) return;
  lua_pushboolean(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, "nnscaler.torch");
  open(L);
}

}  // namespace nns::script
