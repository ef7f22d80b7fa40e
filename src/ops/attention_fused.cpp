// nnscaler::attention and nnscaler::dropped_attention, each with its derivative: attention without
// a mask on views of the projection's output, whose gradients lie side by side as the projection's
// outputs do. What dropout keeps is drawn a row of weights at a time, in both directions.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/attention_head.h"
#include "ops/kernels.h"

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

// bfloat16 is computed with in float32.
bool served(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
}
at::TensorOptions sum_options(const at::Tensor& q) {
  return q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

HeadShape head_shape(const at::Tensor& q, const at::Tensor& k, bool causal,
                     std::optional<double> scale) {
  const double by = scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  return {q.size(2), k.size(2), q.size(3), static_cast<float>(by), causal};
}

// Matrices of one head in float32: where they lie, or copies of those in bfloat16.
class Head {
 public:
  Head(int64_t batch, int64_t head) : batch_(batch), head_(head) {}

  Rows<const float> read(const at::Tensor& x) {
    if (x.scalar_type() == at::kFloat) return {x.const_data_ptr<float>() + place(x), x.stride(2)};
    const Rows<float> copy = room(x);
    const auto* from = static_cast<const uint16_t*>(x.const_data_ptr()) + place(x);
    for (int64_t i = 0; i < x.size(2); ++i)
      widen(from + i * x.stride(2), copy.data + i * copy.row, copy.row);
    return {copy.data, copy.row};
  }
  Rows<float> write(const at::Tensor& x) {
    if (x.scalar_type() == at::kFloat) return {x.mutable_data_ptr<float>() + place(x), x.stride(2)};
    results_.emplace_back(x, room(x));
    return results_.back().second;
  }
  // Takes what was written to copies to its place.
  void finish() const {
    for (const auto& [x, copy] : results_) {
      auto* to = static_cast<uint16_t*>(x.mutable_data_ptr()) + place(x);
      for (int64_t i = 0; i < x.size(2); ++i)
        narrow(copy.data + i * copy.row, to + i * x.stride(2), copy.row);
    }
  }

 private:
  int64_t place(const at::Tensor& x) const { return batch_ * x.stride(0) + head_ * x.stride(1); }
  Rows<float> room(const at::Tensor& x) {
    const auto size = static_cast<size_t>(x.size(2) * x.size(3));
    copies_.emplace_back(new float[size]);  // not cleared
    return {copies_.back().get(), x.size(3)};
  }

  int64_t batch_, head_;
  std::vector<std::unique_ptr<float[]>> copies_;
  std::vector<std::pair<at::Tensor, Rows<float>>> results_;
};

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

// What dropout of a call keeps, head by head: of [batch, heads, queries, keys], which lies at
// `offset` in `full`.
class Drops {
 public:
  Drops(const at::Tensor& q, const at::Tensor& k, double p, std::string_view key, int64_t seed,
        int64_t step, int64_t micro, const OptionalShape& offset, const OptionalShape& full)
      : drops_{checked_stream(key, seed, step, micro), 0, 0,
               static_cast<uint32_t>(drop_threshold(p)), static_cast<float>(1 / (1 - p))} {
    const std::array<int64_t, 4> shape{q.size(0), q.size(1), q.size(2), k.size(2)};
    checked_slice(shape, offset, full);
    for (size_t d = 0; d < 4; ++d) {
      full_[d] = static_cast<uint64_t>(full ? (*full)[d] : shape[d]);
      offset_[d] = static_cast<uint64_t>(offset ? (*offset)[d] : 0);
    }
    drops_.row = full_[3];
  }

  HeadDrops of(int64_t batch, int64_t head) const {
    HeadDrops out = drops_;
    const uint64_t heads = (offset_[0] + static_cast<uint64_t>(batch)) * full_[1] + offset_[1];
    out.first = ((heads + static_cast<uint64_t>(head)) * full_[2] + offset_[2]) * full_[3];
    out.first += offset_[3];
    return out;
  }

 private:
  HeadDrops drops_;
  std::array<uint64_t, 4> offset_{}, full_{};
};

std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value, bool is_causal,
                                          std::optional<double> scale, const Drops* drops) {
  const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key);
  const at::Tensor v = with_whole_rows(value);
  // [batch, length, heads, width] in memory, so that joining the heads copies nothing.
  const at::Tensor out =
      at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  const at::Tensor logsumexp = at::empty({q.size(0), q.size(1), q.size(2)}, sum_options(q));
  if (out.numel() == 0) return {out, logsumexp.zero_()};
  const HeadShape shape = head_shape(q, k, is_causal, scale);
  float* sums = logsumexp.mutable_data_ptr<float>();
  for_each_head(q, shape, [&](int64_t batch, int64_t head) {
    const HeadDrops kept = drops != nullptr ? drops->of(batch, head) : HeadDrops{};
    Head in(batch, head);
    attend_head(shape, in.read(q), in.read(k), in.read(v), in.write(out),
                sums + (batch * q.size(1) + head) * shape.queries,
                drops != nullptr ? &kept : nullptr);
    in.finish();
  });
  return {out, logsumexp};
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, bool is_causal,
                                             std::optional<double> scale) {
  check_shapes(query, key, value);
  if (served(query)) return attend(query, key, value, is_causal, scale, nullptr);
  return at::_scaled_dot_product_flash_attention_for_cpu(
      with_whole_rows(query), with_whole_rows(key), with_whole_rows(value), 0.0, is_causal, {},
      scale);
}

// Everything is dropped, or nothing: no draws.
bool draws(double p) {
  check_probability(p);
  return p > 0 && drop_threshold(p) >> 32 == 0;
}

std::tuple<at::Tensor, at::Tensor> dropped_attention(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, double p, bool causal,
                                                     std::optional<double> scale,
                                                     c10::string_view key, int64_t seed,
                                                     int64_t step, int64_t micro,
                                                     OptionalShape offset, OptionalShape full) {
  check_shapes(q, k, v);
  if (served(q) && draws(p)) {
    const Drops drops(q, k, p, key, seed, step, micro, offset, full);
    return attend(q, k, v, causal, scale, &drops);
  }
  // The composed derivative reads no sums.
  return {
      attention_dropout(q, k, v, {}, p, causal, scale, key, seed, step, micro, offset, full, false),
      at::zeros(q.sizes().slice(0, 3), sum_options(q))};
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

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void check_saved(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& out,
                 const at::Tensor& logsumexp) {
  if (gradient.sizes() != query.sizes() || out.sizes() != query.sizes() ||
      logsumexp.sizes() != query.sizes().slice(0, 3))
    fail(ErrorKind::model,
         "[ops.attention_backward] gradient [{}], output [{}], logsumexp [{}]; expected the shape "
         "of the query [{}]",
         fmt::join(gradient.sizes(), ", "), fmt::join(out.sizes(), ", "),
         fmt::join(logsumexp.sizes(), ", "), fmt::join(query.sizes(), ", "));
}

Gradients attend_backward(const at::Tensor& grad_out, const at::Tensor& query,
                          const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
                          const at::Tensor& logsumexp, bool is_causal, std::optional<double> scale,
                          const Drops* drops) {
  const auto [dq, dk, dv] = gradient_room(query, key);
  if (query.numel() == 0) return {dq.zero_(), dk.zero_(), dv.zero_()};
  const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key);
  const at::Tensor v = with_whole_rows(value), g = with_whole_rows(grad_out);
  const at::Tensor output = with_whole_rows(out), sums = logsumexp.contiguous();
  const HeadShape shape = head_shape(q, k, is_causal, scale);
  const float* each = sums.const_data_ptr<float>();
  for_each_head(q, shape, [&, dq = dq, dk = dk, dv = dv](int64_t batch, int64_t head) {
    Head in(batch, head);
    const HeadGradients gradients{in.write(dq), in.write(dk), in.write(dv)};
    const HeadDrops kept = drops != nullptr ? drops->of(batch, head) : HeadDrops{};
    attend_head_backward(shape, in.read(g), in.read(q), in.read(k), in.read(v), in.read(output),
                         each + (batch * q.size(1) + head) * shape.queries, gradients,
                         drops != nullptr ? &kept : nullptr);
    in.finish();
  });
  return {dq, dk, dv};
}

Gradients attention_backward(const at::Tensor& grad_out, const at::Tensor& query,
                             const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
                             const at::Tensor& logsumexp, bool is_causal,
                             std::optional<double> scale) {
  check_shapes(query, key, value);
  check_saved(grad_out, query, out, logsumexp);
  if (served(query))
    return attend_backward(grad_out, query, key, value, out, logsumexp, is_causal, scale, nullptr);
  const auto [dq, dk, dv] = gradient_room(query, key);
  const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      with_whole_rows(grad_out), with_whole_rows(query), with_whole_rows(key),
      with_whole_rows(value), out, logsumexp, 0.0, is_causal, {}, scale);
  return {dq.copy_(gq), dk.copy_(gk), dv.copy_(gv)};
}

Gradients dropped_attention_backward(const at::Tensor& gradient, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& out, const at::Tensor& logsumexp, double p,
                                     bool causal, std::optional<double> scale, c10::string_view key,
                                     int64_t seed, int64_t step, int64_t micro,
                                     OptionalShape offset, OptionalShape full) {
  check_shapes(q, k, v);
  check_saved(gradient, q, out, logsumexp);
  if (served(q) && draws(p)) {
    const Drops drops(q, k, p, key, seed, step, micro, offset, full);
    return attend_backward(gradient, q, k, v, out, logsumexp, causal, scale, &drops);
  }
  auto [dq, dk, dv, dmask] =
      attention_dropout_backward(gradient, q, k, v, {}, p, causal, scale, key, seed, step, micro,
                                 {true, true, true, false}, offset, full, false);
  return {dq, dk, dv};
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, bool is_causal=False, *, "
      "float? scale=None) -> (Tensor output, Tensor logsumexp)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
      "Tensor logsumexp, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "dropped_attention(Tensor q, Tensor k, Tensor v, float p, bool causal, float? scale, str "
      "key, "
      "int seed, int step, int micro, int[]? offset=None, int[]? full=None) "
      "-> (Tensor output, Tensor logsumexp)");
  m.def(
      "dropped_attention_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, "
      "Tensor logsumexp, float p, bool causal, float? scale, str key, int seed, int step, "
      "int micro, int[]? offset=None, int[]? full=None) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
  m.impl("dropped_attention", dropped_attention);
  m.impl("dropped_attention_backward", dropped_attention_backward);
}

}  // namespace
}  // namespace nns::ops
