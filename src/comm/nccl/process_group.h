// LibTorch's group of NCCL ranks; its header needs CUDA's and NCCL's.
#pragma once

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace nns::comm {

using NcclPtr = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

}  // namespace nns::comm
