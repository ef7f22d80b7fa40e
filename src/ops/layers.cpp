// Derivatives of linear and the root-mean-square norm as one operator each, where ATen has none on
// this device: fewer calls in a program, and temporaries that live no longer than the call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "base/error.h"

namespace nns::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor as_matrix(const at::Tensor& x) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return x.dim() == 2 ? x : x.reshape({rows, x.size(-1)});
}

// Gradient of linear(input, weight) with respect to the input: […, outputs] → […, inputs].
at::Tensor linear_input(const at::Tensor& grad_output, const at::Tensor& weight) {
  if (grad_output.dim() < 1 || weight.dim() != 2 || grad_output.size(-1) != weight.size(0))
    fail(ErrorKind::usage, "[ops.linear_input] a gradient of {} outputs and a weight of {}",
         grad_output.dim() < 1 ? 0 : grad_output.size(-1), weight.dim() < 1 ? 0 : weight.size(0));
  std::vector<int64_t> sizes = grad_output.sizes().vec();
  sizes.back() = weight.size(1);
  return at::mm(as_matrix(grad_output), weight).view(sizes);
}

// The same with respect to the weight: [outputs, inputs]; written into `out`, of as many elements,
// if given.
at::Tensor linear_weight(const at::Tensor& grad_output, const at::Tensor& input,
                         const OptionalTensor& out) {
  if (grad_output.dim() < 1 || input.dim() != grad_output.dim() ||
      input.sizes().slice(0, input.dim() - 1) !=
          grad_output.sizes().slice(0, grad_output.dim() - 1))
    fail(ErrorKind::usage, "[ops.linear_weight] a gradient of {} and an input of {} dimensions",
         grad_output.dim(), input.dim());
  const at::Tensor left = as_matrix(grad_output).t(), right = as_matrix(input);
  if (!out) return at::mm(left, right);
  at::Tensor result = out->view({left.size(0), right.size(1)});
  return at::mm_out(result, left, right);
}

std::vector<int64_t> trailing(const at::Tensor& input, at::IntArrayRef normalized) {
  const int64_t n = static_cast<int64_t>(normalized.size());
  if (n == 0 || n > input.dim() || input.sizes().slice(input.dim() - n) != normalized)
    fail(ErrorKind::usage,
         "[ops.rms_norm] an input of {} dimensions does not end in the {} that "
         "are normalised",
         input.dim(), n);
  std::vector<int64_t> dims;
  for (int64_t d = input.dim() - n; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

// What sums of such numbers are made in: float32 of 16-bit ones.
at::Tensor widened(const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return narrow ? x.to(at::kFloat) : x;
}

// input · rstd · weight with rstd = 1 / √(mean of squares + eps); returns both.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, at::IntArrayRef normalized,
                                            const OptionalTensor& weight, double eps) {
  const at::Tensor x = widened(input);
  const at::Tensor rstd = at::mean(x.mul(x), trailing(input, normalized), true).add_(eps).rsqrt_();
  at::Tensor out = x.mul(rstd);
  if (weight) out = out.mul(*weight);
  return {out.to(input.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& grad_output, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& rstd, const OptionalTensor& weight, std::array<bool, 2> output_mask) {
  const std::vector<int64_t> dims = trailing(input, normalized);
  const at::Tensor gradient = widened(grad_output), unit = widened(input).mul(rstd);
  at::Tensor d_input, d_weight;
  if (output_mask[1]) {
    std::vector<int64_t> leading;
    for (int64_t d = 0; d < dims.front(); ++d) leading.push_back(d);
    d_weight = gradient.mul(unit);
    if (!leading.empty()) d_weight = d_weight.sum(leading);
    if (weight) d_weight = d_weight.to(weight->scalar_type());
  }
  if (output_mask[0]) {
    const at::Tensor scaled = weight ? gradient.mul(*weight) : gradient;
    const at::Tensor along = at::mean(scaled.mul(unit), dims, true);
    d_input = scaled.sub(unit.mul(along)).mul_(rstd).to(input.scalar_type());
  }
  return {d_input, d_weight};
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("linear_input(Tensor grad_output, Tensor weight) -> Tensor");
  m.def("linear_weight(Tensor grad_output, Tensor input, Tensor? out=None) -> Tensor");
  m.def(
      "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float eps) "
      "-> (Tensor, Tensor)");
  m.def(
      "rms_norm_backward(Tensor grad_output, Tensor input, int[] normalized_shape, Tensor rstd, "
      "Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("linear_input", linear_input);
  m.impl("linear_weight", linear_weight);
  m.impl("rms_norm", rms_norm);
  m.impl("rms_norm_backward", rms_norm_backward);
}

}  // namespace
}  // namespace nns::ops
