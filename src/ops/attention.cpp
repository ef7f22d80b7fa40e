// nnscaler::attention_dropout and its derivative, composed of ATen operators and nnscaler::dropout.
#include "ops/attention.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace nns::ops {
namespace {

using DropoutSignature = at::Tensor(const at::Tensor&, double, c10::string_view, int64_t, int64_t,
                                    int64_t, OptionalShape, OptionalShape);
using AttentionSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                      const std::optional<at::Tensor>&, double, bool,
                                      std::optional<double>, c10::string_view, int64_t, int64_t,
                                      int64_t, OptionalShape, OptionalShape, bool);

double factor(const at::Tensor& q, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
}

// Repeats the heads of k or v to those of q.
at::Tensor with_heads_of(const at::Tensor& q, const at::Tensor& k, bool enable_gqa) {
  if (!enable_gqa || k.size(-3) == q.size(-3)) return k;
  if (k.size(-3) == 0 || q.size(-3) % k.size(-3) != 0)
    fail(ErrorKind::model,
         "[ops.attention_dropout] {} query heads, {} key heads; expected a multiple", q.size(-3),
         k.size(-3));
  return k.repeat_interleave(q.size(-3) / k.size(-3), -3);
}

// The gradient of what broadcasting (or with_heads_of) did to a tensor of `like`'s shape.
at::Tensor reduced_to(const at::Tensor& gradient, const at::Tensor& like) {
  if (gradient.sizes() == like.sizes()) return gradient;
  at::Tensor g = gradient;
  if (like.dim() >= 3 && like.size(-3) > 1 && like.size(-3) != g.size(-3))
    g = g.unflatten(-3, {like.size(-3), g.size(-3) / like.size(-3)}).sum(-3);
  return g.sum_to_size(like.sizes());
}

at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k,
                         const std::optional<at::Tensor>& mask, bool causal, double scale,
                         const OptionalShape& offset) {
  at::Tensor scores = at::matmul(q.mul(scale), k.transpose(-2, -1));
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  if (causal) {
    if (mask)
      fail(ErrorKind::usage, "[ops.attention_dropout] causal and a mask; expected one of them");
    const int64_t rows = scores.size(-2), columns = scores.size(-1);
    const int64_t row = offset ? (*offset)[offset->size() - 2] : 0;
    const int64_t column = offset ? (*offset)[offset->size() - 1] : 0;
    const auto options = q.options().dtype(at::kLong);
    const at::Tensor later = at::arange(column, column + columns, options)
                                 .gt(at::arange(row, row + rows, options).unsqueeze(-1));
    scores.masked_fill_(later, kMinusInfinity);
  } else if (mask && mask->scalar_type() == at::kBool) {
    scores.masked_fill_(mask->logical_not(), kMinusInfinity);
  } else if (mask) {
    scores = scores.add(*mask);
  }
  // A row that sees nothing is zero, as in ATen's attention. A causal row always sees something
  // unless the local columns begin behind it.
  return mask || offset ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
}

at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const std::optional<at::Tensor>& mask, double p, bool causal,
                   std::optional<double> scale, c10::string_view key, int64_t seed, int64_t step,
                   int64_t micro, OptionalShape offset, OptionalShape full, bool enable_gqa) {
  const at::Tensor attention =
      probabilities(q, with_heads_of(q, k, enable_gqa), mask, causal, factor(q, scale), offset);
  return at::matmul(dropout(attention, p, key, seed, step, micro, offset, full),
                    with_heads_of(q, v, enable_gqa));
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "attention_dropout(Tensor q, Tensor k, Tensor v, Tensor? mask, float p, bool causal, "
      "float? scale, str key, int seed, int step, int micro, int[]? offset=None, "
      "int[]? full=None, bool enable_gqa=False) -> Tensor");
  m.def(
      "attention_dropout_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor? mask, "
      "float p, bool causal, float? scale, str key, int seed, int step, int micro, bool[4] wanted, "
      "int[]? offset=None, int[]? full=None, bool enable_gqa=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("attention_dropout", forward);
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeImplicitAutograd, m) {
  m.impl("attention_dropout_backward", attention_dropout_backward);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_dropout_backward(
    const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& mask, double p, bool causal, std::optional<double> scale,
    std::string_view key, int64_t seed, int64_t step, int64_t micro, std::array<bool, 4> wanted,
    OptionalShape offset, OptionalShape full, bool enable_gqa) {
  const double by = factor(q, scale);
  const at::Tensor heads = with_heads_of(q, k, enable_gqa);
  const at::Tensor attention = probabilities(q, heads, mask, causal, by, offset);
  const auto drop = [&](const at::Tensor& x) {
    return dropout(x, p, key, seed, step, micro, offset, full);
  };
  at::Tensor dq, dk, dv, dmask;
  if (wanted[2]) dv = reduced_to(at::matmul(drop(attention).transpose(-2, -1), gradient), v);
  if (wanted[0] || wanted[1] || wanted[3]) {
    const at::Tensor values = with_heads_of(q, v, enable_gqa);
    const at::Tensor scores = at::_softmax_backward_data(
        drop(at::matmul(gradient, values.transpose(-2, -1))), attention, -1, q.scalar_type());
    if (wanted[0]) dq = reduced_to(at::matmul(scores, heads).mul(by), q);
    if (wanted[1]) dk = reduced_to(at::matmul(scores.transpose(-2, -1), q.mul(by)), k);
    if (wanted[3] && mask) dmask = scores.sum_to_size(mask->sizes());
  }
  return {dq, dk, dv, dmask};
}

at::Tensor dropout(const at::Tensor& input, double p, std::string_view key, int64_t seed,
                   int64_t step, int64_t micro, OptionalShape offset, OptionalShape full) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("nnscaler::dropout", "")
                             .typed<DropoutSignature>();
  return op.call(input, p, key, seed, step, micro, offset, full);
}

at::Tensor attention_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask, double p, bool causal,
                             std::optional<double> scale, std::string_view key, int64_t seed,
                             int64_t step, int64_t micro, OptionalShape offset, OptionalShape full,
                             bool enable_gqa) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("nnscaler::attention_dropout", "")
                             .typed<AttentionSignature>();
  return op.call(q, k, v, mask, p, causal, scale, key, seed, step, micro, offset, full, enable_gqa);
}

}  // namespace nns::ops
