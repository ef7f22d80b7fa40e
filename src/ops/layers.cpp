// Derivatives of linear as one operator each, where ATen has none on this device: fewer calls in a
// program, and temporaries that live no longer than the call.
#include <ATen/core/Tensor.h>
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

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("linear_input(Tensor grad_output, Tensor weight) -> Tensor");
  m.def("linear_weight(Tensor grad_output, Tensor input, Tensor? out=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("linear_input", linear_input);
  m.impl("linear_weight", linear_weight);
}

}  // namespace
}  // namespace nns::ops
