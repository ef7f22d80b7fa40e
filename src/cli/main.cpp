#include <cstdio>
#include <cstring>

#include "script/state.h"

int main(int argc, char** argv) {
  try {
    nns::script::State state;
    lua_State* L = state.raw();
    if (argc > 2 && std::strcmp(argv[1], "test") == 0) {
      state.require("nnscaler.commands.test");
      lua_getfield(L, -1, "run");
      lua_createtable(L, 0, 3);
      lua_createtable(L, argc, 0);
      int n = 0;
      for (int i = 2; i < argc; ++i) {
        if (std::strcmp(argv[i], "-v") == 0) {
          lua_pushboolean(L, 1);
          lua_setfield(L, -3, "verbose");
        } else if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
          lua_pushstring(L, argv[++i]);
          lua_setfield(L, -3, "filter");
        } else {
          lua_pushstring(L, argv[i]);
          lua_rawseti(L, -2, ++n);
        }
      }
      lua_setfield(L, -2, "paths");
      state.call(1, 1);
      return static_cast<int>(lua_tointeger(L, -1));
    }
    if (argc > 1) {
      state.load_file(argv[1]);
      state.call(0, 0);
    }
    return 0;
  } catch (const nns::Error& e) {
    std::fprintf(stderr, "%s\n%s\n", e.what(), e.traceback().c_str());
    return e.exit_code();
  }
}
