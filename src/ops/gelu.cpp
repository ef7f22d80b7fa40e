// nnscaler::gelu and its derivative: ATen's functions, for float32 by kernels of ours.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/ranges.h>
#include <torch/library.h>

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

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  const GeluForm form = form_of(approximate);
  if (self.scalar_type() != at::kFloat) return at::gelu(self, approximate);
  const at::Tensor x = dense(self);
  at::Tensor y = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ops::gelu(form, from + begin, to + begin, end - begin);
  });
  return y;
}

at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self,
                         c10::string_view approximate) {
  const GeluForm form = form_of(approximate);
  if (grad_output.sizes() != self.sizes() || grad_output.scalar_type() != self.scalar_type())
    fail(ErrorKind::usage,
         "[ops.gelu_backward] gradient of type {} and shape [{}]; expected {} [{}]",
         c10::toString(grad_output.scalar_type()), fmt::join(grad_output.sizes(), ", "),
         c10::toString(self.scalar_type()), fmt::join(self.sizes(), ", "));
  if (self.scalar_type() != at::kFloat) return at::gelu_backward(grad_output, self, approximate);
  at::Tensor x = dense(self), g = grad_output;
  if (g.strides() != x.strides()) {
    x = x.contiguous();
    g = g.contiguous();
  }
  at::Tensor y = at::empty_like(x);
  const float *from = x.const_data_ptr<float>(), *by = g.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ops::gelu_backward(form, by + begin, from + begin, to + begin, end - begin);
  });
  return y;
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("gelu(Tensor self, *, str approximate='none') -> Tensor");
  m.def("gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("gelu", gelu);
  m.impl("gelu_backward", gelu_backward);
}

}  // namespace
}  // namespace nns::ops
