// Devices by name; LibTorch's CUDA library, and then ours, is opened at the first use of a GPU.
#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "ops/gpu.h"
#include "tensor/arguments.h"

namespace nns::tensor {
namespace {

// Returns "" or why there is no GPU.
std::string open_cuda() {
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr)
    return "no GPU: this machine has no CUDA driver";
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&at::globalContext), &info);
  const auto folder =
      std::filesystem::path(info.dli_fname != nullptr ? info.dli_fname : "").parent_path();
  const auto path = folder / "libtorch_cuda.so";
  if (!std::filesystem::exists(path))
    return "LibTorch was built without CUDA (no libtorch_cuda.so beside libtorch_cpu.so)";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* why = dlerror();
    return why != nullptr ? why : "dlopen failed";
  }
  return at::hasCUDA() ? ops::use_cuda_kernels() : "no GPU: the driver reports none";
}

}  // namespace

std::string cuda_problem() {
  static std::once_flag once;
  static std::string problem;
  std::call_once(once, [] { problem = open_cuda(); });
  return problem;
}

c10::Device device_from_name(const std::string& name) {
  const c10::Device device(name);
  if (device.is_cuda())
    if (const std::string problem = cuda_problem(); !problem.empty())
      throw Error(ErrorKind::state,
                  fmt::format("[tensor.device] '{}' cannot be used: {}", name, problem),
                  "use device 'cpu', or run `nnscaler doctor` to see what LibTorch finds");
  return device;
}

}  // namespace nns::tensor
