// Runs our routines for GPUs on this processor, block by block and lane by lane, in the order of
// addition that a GPU has. `gpu_on_host::use(true)` has our operators take them for tensors of the
// CPU; so all but the launch of a kernel and its shuffles is what runs on a GPU.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <vector>

#include "ops/gpu.h"
#include "ops/gpu/table.h"

namespace nns::ops::gpu {
namespace {

struct Block {
  int lanes;
  float* memory;

  float* scratch() const { return memory; }

  template <class F>
  void once(const F& f) const {
    f();
  }

  // Elements of a lane.
  template <int n, class F>
  void of_lane(int lane, int64_t count, const F& f) const {
    for (int64_t i = int64_t{lane} * n; i < count; i += int64_t{lanes} * n) f(i);
  }

  // The last lane first: nothing may depend on the order of lanes.
  template <int n, class F>
  void each(int64_t count, const F& f) const {
    for (int lane = lanes - 1; lane >= 0; --lane) of_lane<n>(lane, count, f);
  }

  template <int n, class S, class F>
  S reduce(int64_t count, const F& f) const {
    std::vector<S> own(static_cast<size_t>(lanes));
    for (int lane = lanes - 1; lane >= 0; --lane)
      of_lane<n>(lane, count, [&](int64_t i) { f(own[static_cast<size_t>(lane)], i); });
    std::vector<S> warps(kWarp);
    for (int warp = 0; warp < lanes / kWarp; ++warp)
      warps[static_cast<size_t>(warp)] = first_of(own.data() + warp * kWarp);
    return first_of(warps.data());
  }

  // What the first lane of a warp has after it has added up.
  template <class S>
  static S first_of(const S* warp) {
    std::vector<S> lane(warp, warp + kWarp);
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      for (int i = 0; i < offset; ++i)
        lane[static_cast<size_t>(i)].add(lane[static_cast<size_t>(i + offset)]);
    return lane[0];
  }
};

struct Host {
  using Bf16 = c10::BFloat16;
  using Half = c10::Half;

  template <class Routine>
  static const char* rows(const Routine& routine, int64_t rows, int64_t steps, int64_t scratch,
                          void* stream) {
    if (stream != nullptr) return "a host has no streams";
    // What memory holds before is not to matter.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<Pack<float, 8>> memory(static_cast<size_t>(scratch) / sizeof(Pack<float, 8>) + 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (auto& pack : memory) std::fill(pack.at, pack.at + 8, nan);
      Block block{lanes_for(steps), scratch > 0 ? memory[0].at : nullptr};
      routine(block, row);
    }
    return nullptr;
  }

  template <class Routine>
  static const char* lanes(const Routine& routine, int64_t count, void* stream) {
    if (stream != nullptr) return "a host has no streams";
    for (int64_t lane = count - 1; lane >= 0; --lane) routine(lane);
    return nullptr;
  }
};

constexpr Kernels kKernels = Table<Host>::all();

template <class Arguments>
const char* broken(const Arguments&, void*) {
  return "out of order";
}
constexpr Kernels kBroken = {broken, broken, broken, broken, broken, broken, broken, broken};

void use(bool on) {
  use_gpu_kernels(c10::kCPU, on ? &kKernels : nullptr);
}

// As `use`, with kernels that never start.
void use_broken() {
  use_gpu_kernels(c10::kCPU, &kBroken);
}

// Whether the gate leaves alone what lies behind `count` elements.
bool stays_inside(int64_t count) {
  const c10::BFloat16 mark(7.0f);
  std::vector<c10::BFloat16> x(256, c10::BFloat16(0.0f)), y(256, mark), z(256, mark);
  const auto untouched = [&](const std::vector<c10::BFloat16>& in) {
    return std::count(in.begin(), in.end(), mark) == 256 - count;
  };
  kKernels.swiglu({Type::bf16, count, x.data(), x.data(), y.data()}, nullptr);
  const bool forward = untouched(y);
  std::fill(y.begin(), y.end(), mark);
  kKernels.swiglu_backward({Type::bf16, count, x.data(), x.data(), x.data(), y.data(), z.data()},
                           nullptr);
  return forward && untouched(y) && untouched(z);
}

TORCH_LIBRARY(gpu_on_host, m) {
  m.def("stays_inside(int count) -> bool", stays_inside);
  m.def("use(bool on) -> ()", use);
  m.def("use_broken() -> ()", use_broken);
}

}  // namespace
}  // namespace nns::ops::gpu
