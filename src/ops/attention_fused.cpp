// nnscaler::attention and its derivative: attention without mask or dropout on views of the
// projection's output, whose gradients lie side by side as the projection's outputs do.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/attention_avx2.h"
#include "ops/simd.h"

namespace nns::ops {
namespace {

void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const bool fits = q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() &&
                    q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3);
  const bool alike = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  if (!fits || !alike)
    fail(ErrorKind::model,
         "[ops.attention] query {} [{}], key {} [{}], value {} [{}]; expected one type and [batch, "
         "heads, length, width], key and value of one length",
         c10::toString(q.scalar_type()), fmt::join(q.sizes(), ", "), c10::toString(k.scalar_type()),
         fmt::join(k.sizes(), ", "), c10::toString(v.scalar_type()), fmt::join(v.sizes(), ", "));
  if (q.numel() > 0 && k.size(2) == 0)
    fail(ErrorKind::model, "[ops.attention] {} queries and no key; expected at least one",
         q.size(2));
}

// The kernels, ATen's too, take it for granted that an element's right neighbour is the next.
at::Tensor with_whole_rows(const at::Tensor& x) {
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

#if defined(__x86_64__)
bool served(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && have_avx2();
}

HeadShape head_shape(const at::Tensor& q, const at::Tensor& k, bool causal,
                     std::optional<double> scale) {
  const double by = scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  return {q.size(2), k.size(2), q.size(3), static_cast<float>(by), causal};
}

Rows<const float> rows_of(const at::Tensor& x, int64_t batch, int64_t head) {
  return {x.const_data_ptr<float>() + batch * x.stride(0) + head * x.stride(1), x.stride(2)};
}
Rows<float> writable_rows_of(const at::Tensor& x, int64_t batch, int64_t head) {
  return {x.mutable_data_ptr<float>() + batch * x.stride(0) + head * x.stride(1), x.stride(2)};
}

// Calls fn(batch, head) for all heads: one head is the work of one thread.
template <class Fn>
void for_each_head(const at::Tensor& q, const HeadShape& shape, Fn fn) {
  constexpr int64_t kWork = 1 << 18;  // multiplications that are worth a thread
  const int64_t heads = q.size(1), each = shape.queries * shape.keys * shape.width;
  const int64_t grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, each));
  at::parallel_for(0, q.size(0) * heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i / heads, i % heads);
  });
}
#endif

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, bool is_causal,
                                             std::optional<double> scale) {
  check_shapes(query, key, value);
#if defined(__x86_64__)
  if (served(query)) {
    const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key);
    const at::Tensor v = with_whole_rows(value);
    // [batch, length, heads, width] in memory, so that joining the heads copies nothing.
    const at::Tensor out =
        at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
    const at::Tensor logsumexp = at::empty({q.size(0), q.size(1), q.size(2)}, q.options());
    if (out.numel() == 0) return {out, logsumexp.zero_()};
    const HeadShape shape = head_shape(q, k, is_causal, scale);
    float* sums = logsumexp.mutable_data_ptr<float>();
    for_each_head(q, shape, [&](int64_t batch, int64_t head) {
      attend_head(shape, rows_of(q, batch, head), rows_of(k, batch, head), rows_of(v, batch, head),
                  writable_rows_of(out, batch, head),
                  sums + (batch * q.size(1) + head) * shape.queries);
    });
    return {out, logsumexp};
  }
#endif
  return at::_scaled_dot_product_flash_attention_for_cpu(
      with_whole_rows(query), with_whole_rows(key), with_whole_rows(value), 0.0, is_causal, {},
      scale);
}

// Room for the gradients of q, k and v: of equal lengths, as one [batch, length, 3, heads, width].
std::array<at::Tensor, 3> gradient_room(const at::Tensor& q, const at::Tensor& k) {
  const auto room = [](const at::Tensor& like, int64_t parts) {
    return at::empty({like.size(0), like.size(2), parts, like.size(1), like.size(3)},
                     like.options());
  };
  const auto part = [](const at::Tensor& all, int64_t i) {
    return all.select(2, i).transpose(1, 2);
  };
  if (q.size(2) != k.size(2))
    return {part(room(q, 1), 0), part(room(k, 1), 0), part(room(k, 1), 0)};
  const at::Tensor all = room(q, 3);
  return {part(all, 0), part(all, 1), part(all, 2)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp, bool is_causal,
    std::optional<double> scale) {
  check_shapes(query, key, value);
  if (grad_out.sizes() != query.sizes() || out.sizes() != query.sizes() ||
      logsumexp.sizes() != query.sizes().slice(0, 3))
    fail(ErrorKind::model,
         "[ops.attention_backward] gradient [{}], output [{}], logsumexp [{}]; expected the shape "
         "of the query [{}]",
         fmt::join(grad_out.sizes(), ", "), fmt::join(out.sizes(), ", "),
         fmt::join(logsumexp.sizes(), ", "), fmt::join(query.sizes(), ", "));
  const auto [dq, dk, dv] = gradient_room(query, key);
#if defined(__x86_64__)
  if (served(query)) {
    if (query.numel() == 0) return {dq.zero_(), dk.zero_(), dv.zero_()};
    const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key);
    const at::Tensor v = with_whole_rows(value), g = with_whole_rows(grad_out);
    const at::Tensor output = with_whole_rows(out), sums = logsumexp.contiguous();
    const HeadShape shape = head_shape(q, k, is_causal, scale);
    const float* each = sums.const_data_ptr<float>();
    for_each_head(q, shape, [&, dq = dq, dk = dk, dv = dv](int64_t batch, int64_t head) {
      const HeadGradients gradients{writable_rows_of(dq, batch, head),
                                    writable_rows_of(dk, batch, head),
                                    writable_rows_of(dv, batch, head)};
      attend_head_backward(shape, rows_of(g, batch, head), rows_of(q, batch, head),
                           rows_of(k, batch, head), rows_of(v, batch, head),
                           rows_of(output, batch, head),
                           each + (batch * q.size(1) + head) * shape.queries, gradients);
    });
    return {dq, dk, dv};
  }
#endif
  const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      with_whole_rows(grad_out), with_whole_rows(query), with_whole_rows(key),
      with_whole_rows(value), out, logsumexp, 0.0, is_causal, {}, scale);
  return {dq.copy_(gq), dk.copy_(gk), dv.copy_(gv)};
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, bool is_causal=False, *, "
      "float? scale=None) -> (Tensor output, Tensor logsumexp)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
      "Tensor logsumexp, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
}

}  // namespace
}  // namespace nns::ops
