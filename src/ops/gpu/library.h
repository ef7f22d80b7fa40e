// What libnnscaler_cuda.so gives.
#pragma once

#include "ops/gpu/kernels.h"

namespace nns::ops::gpu {

struct Library {
  const Kernels* kernels;
  const int* architectures;  // 800, 900, … and 0 at the end
};

}  // namespace nns::ops::gpu

extern "C" nns::ops::gpu::Library nns_cuda_kernels();
