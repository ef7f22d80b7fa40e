#include "base/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace nns {

Plugin open_plugin(const char* library, const char* function) {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&open_plugin), &self);
  const auto path =
      std::filesystem::path(self.dli_fname != nullptr ? self.dli_fname : "").parent_path() /
      library;
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (opened == nullptr) return {nullptr, dlerror()};
  void* const found = dlsym(opened, function);
  NNS_CHECK(found != nullptr, "{} has no {}", library, function);
  return {found, {}};
}

}  // namespace nns
