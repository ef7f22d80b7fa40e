#include "ops/gpu.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>

#include "base/error.h"

namespace nns::ops {
namespace {

std::array<std::atomic<const gpu::Kernels*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> g_kernels{};

}  // namespace

const gpu::Kernels* gpu_kernels(c10::Device device) {
  return g_kernels[static_cast<size_t>(device.type())];
}

void use_gpu_kernels(c10::DeviceType type, const gpu::Kernels* kernels) {
  g_kernels[static_cast<size_t>(type)] = kernels;
}

std::optional<gpu::Type> gpu_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return gpu::Type::f32;
    case at::kBFloat16:
      return gpu::Type::bf16;
    case at::kHalf:
      return gpu::Type::f16;
    case at::kDouble:
      return gpu::Type::f64;
    default:
      return std::nullopt;
  }
}

bool on_gpu(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  const auto type = gpu_type(first);
  if (!type || type == gpu::Type::f64 || gpu_kernels(first.device()) == nullptr) return false;
  for (const at::Tensor& x : tensors)
    if (x.defined() && (x.device() != first.device() || x.scalar_type() != first.scalar_type()))
      return false;
  return true;
}

gpu::Axes gpu_axes(at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes.size() > gpu::Axes::kMost)
    fail(ErrorKind::usage, "[ops.gpu] {} axes whose rows lie apart; expected at most {}",
         sizes.size(), gpu::Axes::kMost);
  gpu::Axes axes;
  axes.count = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), axes.sizes);
  std::copy(strides.begin(), strides.end(), axes.strides);
  return axes;
}

void check_launch(const char* problem) {
  if (problem != nullptr) fail(ErrorKind::state, "[ops.gpu] a kernel did not start: {}", problem);
}

void* current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;  // tests run the kernels there
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace nns::ops
