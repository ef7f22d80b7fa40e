// nnscaler::gelu and its derivative: ATen's functions, for float32 and bfloat16 by kernels of ours.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/kernels.h"

namespace nns::ops {
namespace {

constexpr int64_t kGrain = 8192;  // elements a thread gets at least

GeluForm form_of(c10::string_view approximate) {
  if (approximate == "none") return GeluForm::exact;
  if (approximate == "tanh") return GeluForm::tanh;
  fail(ErrorKind::usage, "[ops.gelu] approximate '{}'; expected 'none' or 'tanh'",
       std::string_view(approximate));
}

// The tensor itself where its elements fill a stretch of memory, in whatever order of axes.
at::Tensor dense(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : x.contiguous();
}

bool served(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
}

// y = f(x…) element by element, for tensors of one type and one order in memory: f(from, to, count)
// takes float32, bfloat16 goes through copies that stay in the cache.
template <size_t n, class F>
void map(const std::array<at::Tensor, n>& operands, const at::Tensor& y, F f) {
  constexpr int64_t kCopied = 1024;
  const bool wide = y.scalar_type() == at::kFloat;
  at::parallel_for(0, y.numel(), kGrain, [&](int64_t begin, int64_t end) {
    std::array<const float*, n> from;
    if (wide) {
      for (size_t i = 0; i < n; ++i) from[i] = operands[i].template const_data_ptr<float>() + begin;
      return f(from, y.mutable_data_ptr<float>() + begin, end - begin);
    }
    float copies[n][kCopied], result[kCopied];
    for (int64_t at = begin; at < end; at += kCopied) {
      const int64_t count = std::min(kCopied, end - at);
      for (size_t i = 0; i < n; ++i) {
        widen(static_cast<const uint16_t*>(operands[i].const_data_ptr()) + at, copies[i], count);
        from[i] = copies[i];
      }
      f(from, result, count);
      narrow(result, static_cast<uint16_t*>(y.mutable_data_ptr()) + at, count);
    }
  });
}

at::Tensor gelu_cpu(const at::Tensor& self, c10::string_view approximate) {
  const GeluForm form = form_of(approximate);
  // ATen's own in float16 makes NaN of infinity on some processors.
  if (self.scalar_type() == at::kHalf)
    return gelu_cpu(self.to(at::kFloat), approximate).to(at::kHalf);
  if (!served(self)) return at::gelu(self, approximate);
  const at::Tensor x = dense(self);
  at::Tensor y = at::empty_like(x);
  map<1>({x}, y,
         [&](const auto& from, float* to, int64_t count) { ops::gelu(form, from[0], to, count); });
  return y;
}

at::Tensor gelu_backward_cpu(const at::Tensor& grad_output, const at::Tensor& self,
                             c10::string_view approximate) {
  const GeluForm form = form_of(approximate);
  if (grad_output.sizes() != self.sizes() || grad_output.scalar_type() != self.scalar_type())
    fail(ErrorKind::usage,
         "[ops.gelu_backward] gradient of type {} and shape [{}]; expected {} [{}]",
         c10::toString(grad_output.scalar_type()), fmt::join(grad_output.sizes(), ", "),
         c10::toString(self.scalar_type()), fmt::join(self.sizes(), ", "));
  if (self.scalar_type() == at::kHalf)
    return gelu_backward_cpu(grad_output.to(at::kFloat), self.to(at::kFloat), approximate)
        .to(at::kHalf);
  if (!served(self)) return at::gelu_backward(grad_output, self, approximate);
  at::Tensor x = dense(self), g = grad_output;
  if (g.strides() != x.strides()) {
    x = x.contiguous();
    g = g.contiguous();
  }
  at::Tensor y = at::empty_like(x);
  map<2>({g, x}, y, [&](const auto& from, float* to, int64_t count) {
    ops::gelu_backward(form, from[0], from[1], to, count);
  });
  return y;
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("gelu(Tensor self, *, str approximate='none') -> Tensor");
  m.def("gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("gelu", gelu_cpu);
  m.impl("gelu_backward", gelu_backward_cpu);
}

}  // namespace
}  // namespace nns::ops
