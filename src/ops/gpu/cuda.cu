// Our kernels for CUDA: the library that is opened where LibTorch finds a GPU (open.cpp).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>

#include "ops/gpu/library.h"
#include "ops/gpu/table.h"

namespace nns::ops::gpu {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

// What the lane `offset` further has.
template <class S>
__device__ S from_above(const S& own, int offset) {
  constexpr int kWords = sizeof(S) / sizeof(unsigned);
  unsigned words[kWords];
  memcpy(words, &own, sizeof(S));
  for (int i = 0; i < kWords; ++i) words[i] = __shfl_down_sync(kAll, words[i], offset);
  S other;
  memcpy(&other, words, sizeof(S));
  return other;
}

struct Block {
  bool has_scratch;

  __device__ float* scratch() const {
    extern __shared__ __align__(32) float memory[];
    return has_scratch ? memory : nullptr;
  }

  template <class F>
  __device__ void once(const F& f) const {
    if (threadIdx.x == 0) f();
  }

  template <int n, class F>
  __device__ void each(int64_t count, const F& f) const {
    for (int64_t i = int64_t{threadIdx.x} * n; i < count; i += int64_t{blockDim.x} * n) f(i);
  }

  // The same for all lanes: that of the first, whose order is fixed.
  template <int n, class S, class F>
  __device__ S reduce(int64_t count, const F& f) const {
    __shared__ unsigned parts[kWarp + 1][sizeof(S) / sizeof(unsigned)];
    S own;
    each<n>(count, [&](int64_t i) { f(own, i); });
    for (int offset = kWarp / 2; offset > 0; offset /= 2) own.add(from_above(own, offset));
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) memcpy(parts[warp], &own, sizeof(S));
    __syncthreads();
    if (warp == 0) {
      S all;
      if (lane < static_cast<int>(blockDim.x) / kWarp) memcpy(&all, parts[lane], sizeof(S));
      for (int offset = kWarp / 2; offset > 0; offset /= 2) all.add(from_above(all, offset));
      if (lane == 0) memcpy(parts[kWarp], &all, sizeof(S));
    }
    __syncthreads();
    memcpy(&own, parts[kWarp], sizeof(S));
    return own;
  }
};

template <class Routine>
__global__ void __launch_bounds__(kMostLanes)
    run_rows(Routine routine, int64_t rows, bool scratch) {
  Block block{scratch};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) routine(block, row);
}

template <class Routine>
__global__ void __launch_bounds__(kMostLanes) run_lanes(Routine routine, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) routine(i);
}

unsigned grid(int64_t blocks) {
  return static_cast<unsigned>(std::min<int64_t>(blocks, std::numeric_limits<int>::max()));
}

const char* problem() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

struct Cuda {
  using Bf16 = __nv_bfloat16;
  using Half = __half;

  template <class Routine>
  static const char* rows(const Routine& routine, int64_t rows, int64_t steps, int64_t scratch,
                          void* stream) {
    if (rows == 0) return nullptr;
    run_rows<<<grid(rows), lanes_for(steps), scratch, static_cast<cudaStream_t>(stream)>>>(
        routine, rows, scratch > 0);
    return problem();
  }

  template <class Routine>
  static const char* lanes(const Routine& routine, int64_t count, void* stream) {
    constexpr int kLanes = 256;
    if (count == 0) return nullptr;
    run_lanes<<<grid((count + kLanes - 1) / kLanes), kLanes, 0,
                static_cast<cudaStream_t>(stream)>>>(routine, count);
    return problem();
  }
};

constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__, 0};
constexpr Kernels kKernels = Table<Cuda>::all();

}  // namespace
}  // namespace nns::ops::gpu

extern "C" nns::ops::gpu::Library nns_cuda_kernels() {
  return {&nns::ops::gpu::kKernels, nns::ops::gpu::kArchitectures};
}
