// Where our operators find kernels for GPUs (gpu/kernels.h). Where there are none (a build without
// nvcc, a type that they do not know) a call is composed of ATen operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "ops/gpu/kernels.h"

namespace nns::ops {

// The kernels for tensors of this device, or nullptr.
const gpu::Kernels* gpu_kernels(c10::Device device);
// Has tensors of this kind of device use them; nullptr: none.
void use_gpu_kernels(c10::DeviceType type, const gpu::Kernels* kernels);

// Which architectures the kernels of this build are for: 800, 900; or why there are none.
struct CudaBuild {
  std::vector<int> architectures;
  std::string problem;
};
CudaBuild cuda_build();
// Has tensors of CUDA devices use them, where this build has any; "" or why that failed.
std::string use_cuda_kernels();

// The type of a tensor for kernels; nothing where they do not know it.
std::optional<gpu::Type> gpu_type(const at::Tensor& x);
// Whether there are kernels for these, all of one 16-bit type or float32 (undefined ones left out),
// on the device of the first.
bool on_gpu(std::initializer_list<at::Tensor> tensors);

gpu::Axes gpu_axes(at::IntArrayRef sizes, at::IntArrayRef strides);

// Runs a kernel on the current stream of the device of `x`. Throws a state Error where it cannot.
void check_launch(const char* problem);
void* current_stream(c10::Device device);
template <class Arguments>
void launch(const at::Tensor& x, gpu::Kernel<Arguments>* gpu::Kernels::* kernel,
            const Arguments& arguments) {
  const c10::DeviceGuard guard(x.device());
  check_launch((gpu_kernels(x.device())->*kernel)(arguments, current_stream(x.device())));
}

// Elements of a tensor as kernels take them; nullptr for an undefined one.
inline const void* gpu_read(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}
inline void* gpu_write(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

}  // namespace nns::ops
