// The Lua side of the machine: the library compiled into the binary, its loaders, strict globals,
// whole-line print, and the door to the LibTorch half, opened at its first use.
#pragma once

#include "script/state.h"

namespace nns::script {

// One file of lua/ as it was at build time: module name and text.
struct EmbeddedFile {
  const char* module;
  const char* path;
  const char* text;
  size_t size;
};
extern const EmbeddedFile kEmbedded[];
extern const size_t kEmbeddedCount;

// Prepares a new machine; called by State's constructor.
void open_library(State& state);

// What every machine gets beside the library: the folder that binds the planner core says so when
// it is loaded, since it stands below this one.
void set_core_opener(void (*open)(lua_State*));

// Opens libnnscaler_torch beside this library (once per process) and registers its modules in the
// state. Throws a state Error with the loader's words if it cannot be opened.
void open_torch(lua_State* L);

}  // namespace nns::script
