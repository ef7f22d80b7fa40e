// What LibTorch is this, and which instruction sets and GPUs our kernels are for.
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "ops/gpu.h"
#include "ops/isa.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

void set_text(lua_State* L, const char* key, const std::string& text) {  // [table]
  script::push_string(L, text);
  lua_setfield(L, -2, key);
}

void set_list(lua_State* L, const char* key, const std::vector<std::string>& list) {  // [table]
  lua_newtable(L);
  int at = 0;
  for (const std::string& text : list) {
    script::push_string(L, text);
    lua_rawseti(L, -2, ++at);
  }
  lua_setfield(L, -2, key);
}

// () → { version=, folder=, cpu_capability=, config=, isa=, isas= }
int build_info(lua_State* L) {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&at::get_cpu_capability), &info);
  lua_createtable(L, 0, 6);
  set_text(L, "version", TORCH_VERSION);
  set_text(L, "folder",
           std::filesystem::path(info.dli_fname != nullptr ? info.dli_fname : "").parent_path());
  set_text(L, "cpu_capability", at::get_cpu_capability());
  set_text(L, "config", at::show_config());
  set_text(L, "isa", ops::isa());
  set_list(L, "isas", ops::isas());
  return 1;
}

// () → { architectures=, problem= } of our kernels for CUDA; opens their library.
int cuda_build(lua_State* L) {
  const ops::CudaBuild build = ops::cuda_build();
  std::vector<std::string> names;
  for (const int architecture : build.architectures)
    names.push_back(fmt::format("sm_{}", architecture / 10));
  lua_createtable(L, 0, 2);
  set_list(L, "architectures", names);
  set_text(L, "problem", build.problem);
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
  script::set_functions(L, {{"build_info", guard<build_info>},
                            {"choose_isa", guard<choose_isa>},
                            {"cuda_build", guard<cuda_build>}});
}

}  // namespace nns::tensor
