// Stands for the mpi back end in a build that found no MPI.
#include "base/error.h"
#include "comm/backend.h"

namespace nns::comm {

std::string mpi_problem() {
  return "this build has no mpi back end";
}

std::shared_ptr<Communicator> connect_mpi(const Launch&, const ConnectOptions&) {
  throw Error(ErrorKind::communication, "[comm.mpi] " + mpi_problem(),
              "install libopenmpi-dev and build again");
}

}  // namespace nns::comm
