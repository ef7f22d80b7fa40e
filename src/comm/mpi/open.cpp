// Opens libnnscaler_mpi.so on demand: without it the program needs no MPI to start.
#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "comm/mpi/library.h"

namespace nns::comm {

std::shared_ptr<Communicator> connect_mpi(const Launch& launch, const ConnectOptions& options) {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&connect_mpi), &self);
  const auto path =
      std::filesystem::path(self.dli_fname != nullptr ? self.dli_fname : "").parent_path() /
      "libnnscaler_mpi.so";
  // Open MPI opens plugins that look for its symbols among the global ones.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    throw Error(ErrorKind::communication, fmt::format("[comm.mpi] cannot open MPI: {}", dlerror()),
                "install libopenmpi3 or choose another comm.backend");
  const auto connect = reinterpret_cast<MpiConnect*>(dlsym(library, kMpiConnect));
  NNS_CHECK(connect != nullptr, "libnnscaler_mpi.so has no {}", kMpiConnect);
  std::shared_ptr<Communicator> communicator;
  connect(launch, options, communicator);
  return communicator;
}

}  // namespace nns::comm
