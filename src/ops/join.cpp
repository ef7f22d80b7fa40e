// nnscaler::join: what aten::cat gives, as a view where the parts already lie side by side (as the
// gradients of nnscaler::attention_backward do). The result may share memory with the parts.
// Also here: operators for engines, which have no derivative, refuse to be differentiated.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <algorithm>

#include "base/error.h"

namespace nns::ops {
namespace {

// Whether b continues a along `dim` in the same memory.
bool continues(const at::Tensor& a, const at::Tensor& b, int64_t dim) {
  if (!a.has_storage() || !b.has_storage() || !a.is_alias_of(b) || a.dim() != b.dim() ||
      a.scalar_type() != b.scalar_type() || a.strides() != b.strides())
    return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (d != dim && a.size(d) != b.size(d)) return false;
  return b.storage_offset() == a.storage_offset() + a.size(dim) * a.stride(dim);
}

at::Tensor join(at::TensorList tensors, int64_t dim) {
  if (tensors.empty()) fail(ErrorKind::usage, "[ops.join] no tensors; expected at least one");
  const at::Tensor& first = tensors[0];
  const int64_t axis = dim < 0 ? dim + first.dim() : dim;
  if (axis < 0 || axis >= first.dim())
    fail(ErrorKind::usage, "[ops.join] dimension {} of tensors of {} dimensions", dim, first.dim());
  std::vector<int64_t> sizes = first.sizes().vec();
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (!continues(tensors[i - 1], tensors[i], axis)) return at::cat(tensors, dim);
    sizes[static_cast<size_t>(axis)] += tensors[i].size(axis);
  }
  return at::as_strided(first, sizes, first.strides());
}

bool wants_gradient(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
  if (!value.isTensorList()) return false;
  const auto list = value.toTensorVector();
  return std::any_of(list.begin(), list.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

void without_derivative(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  if (at::GradMode::is_enabled() &&
      std::any_of(stack->end() - static_cast<int64_t>(count), stack->end(), wants_gradient))
    fail(ErrorKind::usage,
         "[ops.autograd] {} has no derivative; expected tensors that require no gradient, or a "
         "call of the ATen operator",
         op.schema().name());
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("join(Tensor[] tensors, int dim=0) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("join", join);
}

TORCH_LIBRARY_IMPL(nnscaler, Autograd, m) {
  for (const char* name : {"gelu",
                           "gelu_backward",
                           "attention",
                           "attention_backward",
                           "cross_entropy",
                           "cross_entropy_backward",
                           "join",
                           "linear_input",
                           "linear_weight",
                           "rms_norm",
                           "rms_norm_backward",
                           "add_rms_norm",
                           "layer_norm",
                           "layer_norm_backward",
                           "add_layer_norm",
                           "swiglu",
                           "swiglu_backward",
                           "tiled_linear",
                           "tiled_linear_input",
                           "tiled_linear_weight",
                           "rope",
                           "rope_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_derivative>());
}

}  // namespace
}  // namespace nns::ops
