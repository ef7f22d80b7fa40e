// What our random operators share. philox.h says what a draw depends on; here are its checked
// arguments and the implementations of dropout.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "ops/gpu.h"
#include "ops/philox.h"
#include "ops/slice.h"

namespace nns::ops {

using OptionalShape = at::OptionalIntArrayRef;

// Where the numbers of one call come from. Throws a usage Error for values out of range.
Stream checked_stream(std::string_view key, int64_t seed, int64_t step, int64_t micro);

// The place of a local tensor of `shape` in the unsplit one; both or none of offset and full.
Slice checked_slice(at::IntArrayRef shape, const OptionalShape& offset, const OptionalShape& full);

// Throws a usage Error unless 0 <= p <= 1.
void check_probability(double p);

// A word below this drops its element: P(drop) = p to 2^-32.
inline uint64_t drop_threshold(double p) {
  return static_cast<uint64_t>(p * 0x1p32 + 0.5);
}

// The boolean mask of what dropout keeps of a tensor like `like`, on its device.
at::Tensor dropout_mask(const at::Tensor& like, double p, std::string_view key, int64_t seed,
                        int64_t step, int64_t micro, OptionalShape offset, OptionalShape full);

// By a kernel for GPUs into y: what is kept of x, or the mask of that where x is undefined.
at::Tensor dropout_gpu(const at::Tensor& x, at::Tensor y, gpu::Type type, const Stream& stream,
                       const Slice& slice, double p);
// By way of dropout_mask: the same bits as the kernels, on any device.
at::Tensor dropout_composed(const at::Tensor& input, double p, std::string_view key, int64_t seed,
                            int64_t step, int64_t micro, OptionalShape offset, OptionalShape full);

// Calls nnscaler::dropout through the dispatcher (so that autograd sees it).
at::Tensor dropout(const at::Tensor& input, double p, std::string_view key, int64_t seed,
                   int64_t step, int64_t micro, OptionalShape offset, OptionalShape full);

}  // namespace nns::ops
