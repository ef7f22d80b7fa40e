// nnscaler::attention on a GPU: LibTorch's flash kernels, forward and backward, in 16 bits (Dao
// 2023). They take [batch, length, heads, width], which is how projections lay out what attention
// reads, so that the transposes around it copy nothing. operators/flash.h says what they serve.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include "base/error.h"
#include "operators/flash.h"

namespace nns::ops {
namespace {

// The kernels read rows whose elements lie side by side.
at::Tensor by_length(const at::Tensor& x) {
  const at::Tensor view = x.transpose(1, 2);
  return view.stride(3) == 1 ? view : view.contiguous();
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (q.dim() == 4 && half && k.sizes() == v.sizes() && q.scalar_type() == k.scalar_type() &&
      q.scalar_type() == v.scalar_type() &&
      operators::flash_serves(q.size(2), k.dim() == 4 ? k.size(2) : 0, q.size(3), causal))
    return;
  fail(ErrorKind::model,
       "[ops.attention] query {} [{}], key [{}]: no kernel on a GPU; expected float16 or bfloat16, "
       "[batch, heads, length, width] with a width up to {} that {} divides",
       c10::toString(q.scalar_type()), fmt::join(q.sizes(), ", "), fmt::join(k.sizes(), ", "),
       operators::kFlashWidest, operators::kFlashWidth);
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, bool causal,
                                           std::optional<double> scale) {
  check(q, k, v, causal);
  const auto result =
      at::_flash_attention_forward(by_length(q), by_length(k), by_length(v), std::nullopt,
                                   std::nullopt, q.size(2), k.size(2), 0.0, causal, false, scale);
  return {std::get<0>(result).transpose(1, 2), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient,
                                                        const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v, const at::Tensor& out,
                                                        const at::Tensor& logsumexp, bool causal,
                                                        std::optional<double> scale) {
  check(q, k, v, causal);
  // The state of random numbers, which no dropout needs.
  const at::Tensor none = at::Tensor(), state = at::empty({2}, q.options().dtype(at::kUInt64));
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      by_length(gradient), by_length(q), by_length(k), by_length(v), by_length(out),
      logsumexp.contiguous(), none, none, q.size(2), k.size(2), 0.0, causal, state,
      at::empty({}, q.options().dtype(at::kUInt64)), scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

TORCH_LIBRARY_IMPL(nnscaler, CUDA, m) {
  m.impl("attention", forward);
  m.impl("attention_backward", backward);
}

}  // namespace
}  // namespace nns::ops
