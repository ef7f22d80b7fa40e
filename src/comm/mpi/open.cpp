// Opens libnnscaler_mpi.so, which holds the mpi back end.
#include "comm/library.h"

namespace nns::comm {
namespace {

constexpr const char* kLibrary = "libnnscaler_mpi.so";

}  // namespace

std::string mpi_problem() {
  return problem_of(kLibrary);
}

std::shared_ptr<Communicator> connect_mpi(const Launch& launch, const ConnectOptions& options) {
  return connect_by("mpi", kLibrary, "nns_connect_mpi",
                    "install libopenmpi3 or choose another comm.backend", launch, options);
}

}  // namespace nns::comm
