// The kernels that we have for GPUs: what they are given, and the table through which they are
// called. Memory is that of the device, numbers of one `type` unless it is said otherwise; sums are
// made in float32. Nothing of CUDA and nothing of LibTorch here.
#pragma once

#include <cstdint>

#include "ops/philox.h"

namespace nns::ops::gpu {

enum class Type { f32, bf16, f16, f64 };

// Places of rows in memory: the index of a row is taken apart by sizes, outermost first.
struct Axes {
  static constexpr int kMost = 16;
  int count = 0;
  int64_t sizes[kMost] = {}, strides[kMost] = {};
};

// As NormRows (ops/kernels.h); mean and rstd are float32.
struct Norm {
  Type type;
  int64_t rows, width;
  float eps;
  const void *x, *addend, *weight, *bias;
  void *sum, *y;
  float *mean, *rstd;
};

// As NormRowsBackward, in `parts` of the rows: dweight and dbias [parts, width] are float32, each
// row of them the sum over a part.
struct NormBackward {
  Type type;
  int64_t rows, width, parts;
  const void *gradient, *x;
  const float *mean, *rstd;
  const void *weight, *addend;
  void* dx;
  float *dweight, *dbias;
};

// y = silu(gate) · up.
struct Swiglu {
  Type type;
  int64_t count;
  const void *gate, *up;
  void* y;
};
struct SwigluBackward {
  Type type;
  int64_t count;
  const void *gradient, *gate, *up;
  void *dgate, *dup;
};

// As rotate_row, on rows that lie at `axes` in x and in y, whole rows apart; those of cos and sin
// follow each other and begin again after `time` rows.
struct Rope {
  Type type;
  bool back;
  int64_t rows, time, width;
  Axes axes;
  const void *x, *cos, *sin;
  void* y;
};

// Per row of scores log Σ exp(x), the score of its label and Σ x, all float32; null: not wanted.
struct LogSums {
  Type type;
  int64_t rows, classes;
  const void* scores;
  const int64_t* labels;
  float *sums, *own, *plain;
};

// y = by · exp(x - sum) - less, plus `own` at the label; by, sum, less and own are one number a
// row, and less and own may be null. Zeros, but for `own`, where `by` is 0. In place where y is x.
struct Softmax {
  Type type;
  int64_t rows, classes;
  const void* scores;
  const int64_t* labels;
  const float *sums, *by, *less, *own;
  void* y;
};

// What a stream keeps of the elements of a slice (ops/slice.h): runs of `run` elements, the first
// of which lie at start + axes in the unsplit tensor. y = x · scale or 0; x null: a mask of
// booleans.
struct Dropout {
  Type type;
  Stream stream;
  uint64_t threshold;
  double scale;
  int64_t runs, run, start;
  Axes axes;
  const void* x;
  void* y;
};

// Starts work on a stream of the device in use; gives the reason why it cannot, or nullptr.
template <class Arguments>
using Kernel = const char*(const Arguments&, void* stream);

struct Kernels {
  Kernel<Norm>* normalize;
  Kernel<NormBackward>* normalize_backward;
  Kernel<Swiglu>* swiglu;
  Kernel<SwigluBackward>* swiglu_backward;
  Kernel<Rope>* rope;
  Kernel<LogSums>* log_sums;
  Kernel<Softmax>* softmax;
  Kernel<Dropout>* dropout;
};

}  // namespace nns::ops::gpu
