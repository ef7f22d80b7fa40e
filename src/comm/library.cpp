#include "comm/library.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace nns::comm {
namespace {

// nullptr: dlerror says why.
void* open_beside(const char* library) {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&open_beside), &self);
  const auto path =
      std::filesystem::path(self.dli_fname != nullptr ? self.dli_fname : "").parent_path() /
      library;
  // Open MPI opens plugins that look for its symbols among the global ones.
  return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

std::string problem_of(const char* library) {
  return open_beside(library) != nullptr ? "" : dlerror();
}

std::shared_ptr<Communicator> connect_by(const char* backend, const char* library,
                                         const char* function, const char* hint,
                                         const Launch& launch, const ConnectOptions& options) {
  void* const opened = open_beside(library);
  if (opened == nullptr)
    throw Error(ErrorKind::communication,
                fmt::format("[comm.{}] cannot open the back end: {}", backend, dlerror()), hint);
  const auto connect = reinterpret_cast<Connect*>(dlsym(opened, function));
  NNS_CHECK(connect != nullptr, "{} has no {}", library, function);
  std::shared_ptr<Communicator> communicator;
  connect(launch, options, communicator);
  return communicator;
}

}  // namespace nns::comm
