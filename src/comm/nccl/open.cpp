// Opens libnnscaler_nccl.so, which holds the nccl back end.
#include "base/error.h"
#include "comm/library.h"
#include "tensor/calling.h"

namespace nns::comm {

std::string nccl_problem() {
  return tensor::cuda_problem();
}

std::shared_ptr<Communicator> connect_nccl(const Launch& launch, const ConnectOptions& options) {
  if (const std::string problem = nccl_problem(); !problem.empty())
    throw Error(ErrorKind::communication,
                fmt::format("[comm.nccl] no GPU can be used: {}", problem),
                "nccl joins GPUs; choose another comm.backend, or see `nnscaler doctor`");
  return connect_by("nccl", "libnnscaler_nccl.so", "nns_connect_nccl",
                    "NCCL comes with the GPU build of torch", launch, options);
}

}  // namespace nns::comm
