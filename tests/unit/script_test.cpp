// The LuaJIT machine as C++ uses it: its thread, counted references, text only.
#include "script/state.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>

namespace nns::script {
namespace {

TEST_CASE("a Lua state is entered from its own thread only") {
  State state;
  state.load_text("return 1 + 1", "=sum");
  std::string said;
  std::thread([&] {
    try {
      state.call(0, 1);
    } catch (const Error& error) {
      said = error.what();
    }
  }).join();
  CHECK(said.find("Lua state entered from a foreign thread") != std::string::npos);
  state.call(0, 1);
  CHECK(lua_tonumber(state.raw(), -1) == 2);
}

TEST_CASE("references are counted, and free what they held") {
  State state;
  lua_State* L = state.raw();
  const auto before = Ref::live();
  {
    lua_newtable(L);
    const Ref held = Ref::pop(L);
    CHECK(Ref::live() == before + 1);
    held.push(L);
    CHECK(lua_istable(L, -1));
  }
  CHECK(Ref::live() == before);
}

TEST_CASE("a Lua error is an Error with the stack of its lines") {
  State state;
  state.load_text("local function deep() error 'boom' end\ndeep()", "=chunk");
  try {
    state.call(0, 0);
    FAIL("an error was expected");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("chunk:1: boom") != std::string::npos);
  }
}

}  // namespace
}  // namespace nns::script
