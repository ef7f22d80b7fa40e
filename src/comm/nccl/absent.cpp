// Stands for the nccl back end in a build that found no CUDA toolkit, or no header of the NCCL that
// LibTorch was built with.
#include "base/error.h"
#include "comm/backend.h"

namespace nns::comm {

std::string nccl_problem() {
  return "this build has no nccl back end";
}

std::shared_ptr<Communicator> connect_nccl(const Launch&, const ConnectOptions&) {
  throw Error(ErrorKind::communication, "[comm.nccl] " + nccl_problem(),
              "install the CUDA toolkit and the NCCL of the torch wheel and build again");
}

}  // namespace nns::comm
