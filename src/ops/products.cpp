// Linear layers and their gradients by products of our own (kernels_product.cpp), for float32 on a
// CPU: what `lower` puts where they are faster than ATen's.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "ops/kernels.h"

namespace nns::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kRowsOfThread = 32;  // at least

// A tensor as rows of its last dimension, which lie side by side.
at::Tensor as_rows(const at::Tensor& x, std::string_view op) {
  if (x.scalar_type() != at::kFloat || !x.is_cpu() || x.dim() < 1)
    fail(ErrorKind::usage,
         "[ops.{}] {} [{}] on {}; expected float32 of one dimension at least on cpu", op,
         c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "), x.device().str());
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return x.contiguous().view({rows, x.size(-1)});
}

[[noreturn]] void misfit(const at::Tensor& a, const at::Tensor& b, std::string_view op) {
  fail(ErrorKind::usage, "[ops.{}] operands [{}] and [{}]; expected one inner size", op,
       fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", "));
}

// c = a b, rows shared out to threads.
void multiply(Product p) {
  if (p.rows == 0 || p.columns == 0) return;
  at::parallel_for(0, p.rows, kRowsOfThread, [&](int64_t begin, int64_t end) {
    const at::Tensor panels =
        at::empty({product_scratch(p.depth, p.columns)}, at::TensorOptions(at::kFloat));
    Product own = p;
    own.rows = end - begin;
    own.a += begin * p.a_row;
    own.c += begin * p.c_row;
    product(own, panels.mutable_data_ptr<float>());
  });
}

at::Tensor tiled_linear(const at::Tensor& input, const at::Tensor& weight,
                        const OptionalTensor& bias) {
  const at::Tensor x = as_rows(input, "tiled_linear"), w = as_rows(weight, "tiled_linear");
  if (weight.dim() != 2 || x.size(1) != w.size(1)) misfit(input, weight, "tiled_linear");
  const at::Tensor b = bias ? as_rows(*bias, "tiled_linear") : at::Tensor();
  if (bias && (bias->dim() != 1 || bias->size(0) != w.size(0)))
    misfit(weight, *bias, "tiled_linear");
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = w.size(0);
  at::Tensor y = at::empty(sizes, input.options());
  if (x.size(1) == 0) return bias ? y.copy_(*bias) : y.zero_();
  multiply({x.size(0), w.size(0), x.size(1), x.const_data_ptr<float>(), x.size(1), 1,
            w.const_data_ptr<float>(), 1, w.size(1), bias ? b.const_data_ptr<float>() : nullptr,
            y.mutable_data_ptr<float>(), w.size(0)});
  return y;
}

at::Tensor tiled_linear_input(const at::Tensor& grad_output, const at::Tensor& weight) {
  const at::Tensor g = as_rows(grad_output, "tiled_linear_input"),
                   w = as_rows(weight, "tiled_linear_input");
  if (weight.dim() != 2 || g.size(1) != w.size(0))
    misfit(grad_output, weight, "tiled_linear_input");
  std::vector<int64_t> sizes = grad_output.sizes().vec();
  sizes.back() = w.size(1);
  at::Tensor dx = at::empty(sizes, grad_output.options());
  if (g.size(1) == 0) return dx.zero_();
  multiply({g.size(0), w.size(1), g.size(1), g.const_data_ptr<float>(), g.size(1), 1,
            w.const_data_ptr<float>(), w.size(1), 1, nullptr, dx.mutable_data_ptr<float>(),
            w.size(1)});
  return dx;
}

at::Tensor tiled_linear_weight(const at::Tensor& grad_output, const at::Tensor& input,
                               const OptionalTensor& out) {
  const at::Tensor g = as_rows(grad_output, "tiled_linear_weight"),
                   x = as_rows(input, "tiled_linear_weight");
  if (grad_output.sizes().slice(0, grad_output.dim() - 1) !=
      input.sizes().slice(0, input.dim() - 1))
    misfit(grad_output, input, "tiled_linear_weight");
  const std::vector<int64_t> sizes = {g.size(1), x.size(1)};
  at::Tensor dw = out ? out->view(sizes) : at::empty(sizes, input.options());
  if (x.size(0) == 0) return dw.zero_();
  multiply({g.size(1), x.size(1), x.size(0), g.const_data_ptr<float>(), 1, g.size(1),
            x.const_data_ptr<float>(), x.size(1), 1, nullptr, dw.mutable_data_ptr<float>(),
            x.size(1)});
  return dw;
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("tiled_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("tiled_linear_input(Tensor grad_output, Tensor weight) -> Tensor");
  m.def("tiled_linear_weight(Tensor grad_output, Tensor input, Tensor? out=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("tiled_linear", tiled_linear);
  m.impl("tiled_linear_input", tiled_linear_input);
  m.impl("tiled_linear_weight", tiled_linear_weight);
}

}  // namespace
}  // namespace nns::ops
