// What LibTorch is this: for `nnscaler doctor`.
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <filesystem>

#include "tensor/calling.h"

namespace nns::tensor {
namespace {

void set_text(lua_State* L, const char* key, const std::string& text) {  // [table]
  script::push_string(L, text);
  lua_setfield(L, -2, key);
}

int build_info(lua_State* L) {  // () → { version=, folder=, cpu_capability=, config= }
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&at::get_cpu_capability), &info);
  lua_createtable(L, 0, 4);
  set_text(L, "version", TORCH_VERSION);
  set_text(L, "folder",
           std::filesystem::path(info.dli_fname != nullptr ? info.dli_fname : "").parent_path());
  set_text(L, "cpu_capability", at::get_cpu_capability());
  set_text(L, "config", at::show_config());
  return 1;
}

}  // namespace

void add_build_info(lua_State* L) {
  script::set_functions(L, {{"build_info", guard<build_info>}});
}

}  // namespace nns::tensor
