// What the routines for GPUs are written in. nvcc compiles them for a device (cuda.cu), g++ for the
// tests on a host (host_device.h). A routine for rows is run by all lanes of a block: each takes
// its share of the elements through `block.each`, and sums over lanes come from `block.reduce`. A
// lane may read again what it wrote itself, in calls of the same width, and nothing else.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define NNS_GPU __host__ __device__ inline
#else
#define NNS_GPU inline
#endif

namespace nns::ops::gpu {

// n elements side by side, read and written at once.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T at[n];
};

// The same as float32.
template <int n>
struct Floats {
  float at[n];
};

template <int n, class T>
NNS_GPU Floats<n> load(const T* from) {
  const Pack<T, n> pack = *reinterpret_cast<const Pack<T, n>*>(from);
  Floats<n> x;
  for (int i = 0; i < n; ++i) x.at[i] = static_cast<float>(pack.at[i]);
  return x;
}
// Without memory: all of one value.
template <int n, class T>
NNS_GPU Floats<n> load_or(const T* from, int64_t at, float value) {
  if (from != nullptr) return load<n>(from + at);
  Floats<n> x;
  for (int i = 0; i < n; ++i) x.at[i] = value;
  return x;
}
template <int n, class T>
NNS_GPU void store(const Floats<n>& x, T* to) {
  Pack<T, n> pack;
  for (int i = 0; i < n; ++i) pack.at[i] = static_cast<T>(x.at[i]);
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// Addends of reduce.
template <int n>
struct Sum {
  float at[n] = {};
  NNS_GPU void add(const Sum& other) {
    for (int i = 0; i < n; ++i) at[i] += other.at[i];
  }
};

}  // namespace nns::ops::gpu
