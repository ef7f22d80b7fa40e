// Opens libnnscaler_cuda.so, which holds our kernels for CUDA.
#include "base/plugin.h"
#include "ops/gpu.h"
#include "ops/gpu/library.h"

namespace nns::ops {
namespace {

struct Opened {
  gpu::Library library{};
  std::string problem;
};

const Opened& opened() {
  static const Opened found = [] {
    const Plugin plugin = open_plugin("libnnscaler_cuda.so", "nns_cuda_kernels");
    if (plugin.function == nullptr)
      return Opened{{}, "our kernels for CUDA cannot be opened: " + plugin.error};
    return Opened{reinterpret_cast<decltype(&nns_cuda_kernels)>(plugin.function)(), {}};
  }();
  return found;
}

}  // namespace

CudaBuild cuda_build() {
  CudaBuild build{{}, opened().problem};
  for (const int* at = opened().library.architectures; at != nullptr && *at != 0; ++at)
    build.architectures.push_back(*at);
  return build;
}

std::string use_cuda_kernels() {
  if (opened().problem.empty()) use_gpu_kernels(c10::kCUDA, opened().library.kernels);
  return opened().problem;
}

}  // namespace nns::ops
