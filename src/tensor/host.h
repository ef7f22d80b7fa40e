// Memory of the host for states of weights that a device has no room for. It is counted apart from
// what LibTorch holds on the CPU, also where the CPU is the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tensor/allocator.h"

namespace nns::tensor {

// A contiguous tensor there, its elements undefined; page-locked where GPUs can be used.
at::Tensor host_empty(at::IntArrayRef shape, at::ScalarType dtype);
// A copy there, laid out as the tensor is.
at::Tensor to_host(const at::Tensor& x);
// A copy on a device.
at::Tensor from_host(const at::Tensor& x, const std::string& device);
MemoryCount host_memory() noexcept;
void reset_host_peak() noexcept;

}  // namespace nns::tensor
