// What LibTorch is this, and which instruction set our kernels use.
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "ops/isa.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

void set_text(lua_State* L, const char* key, const std::string& text) {  // [table]
  script::push_string(L, text);
  lua_setfield(L, -2, key);
}

int build_info(lua_State* L) {  // () → { version=, folder=, cpu_capability=, config=, isa=, isas= }
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&at::get_cpu_capability), &info);
  lua_createtable(L, 0, 6);
  set_text(L, "version", TORCH_VERSION);
  set_text(L, "folder",
           std::filesystem::path(info.dli_fname != nullptr ? info.dli_fname : "").parent_path());
  set_text(L, "cpu_capability", at::get_cpu_capability());
  set_text(L, "config", at::show_config());
  set_text(L, "isa", ops::isa());
  lua_newtable(L);
  int at = 0;
  for (const std::string& name : ops::isas()) {
    script::push_string(L, name);
    lua_rawseti(L, -2, ++at);
  }
  lua_setfield(L, -2, "isas");
  return 1;
}

int choose_isa(lua_State* L) {  // (name)
  ops::choose_isa(luaL_checkstring(L, 1));
  return 0;
}

}  // namespace

void add_build_info(lua_State* L) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* name = std::getenv("NNSCALER_ISA")) ops::choose_isa(name);
  });
  script::set_functions(L, {{"build_info", guard<build_info>}, {"choose_isa", guard<choose_isa>}});
}

}  // namespace nns::tensor
