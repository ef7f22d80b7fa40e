// Stands for our kernels for CUDA in a build that found no nvcc, or a LibTorch without CUDA.
#include "ops/gpu.h"

namespace nns::ops {

CudaBuild cuda_build() {
  return {{}, "this build has none (no nvcc of the CUDA toolkit, or a LibTorch without CUDA)"};
}

std::string use_cuda_kernels() {
  return "";
}

}  // namespace nns::ops
