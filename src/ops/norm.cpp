// nnscaler::rms_norm and nnscaler::layer_norm with their derivatives, also with the sum that they
// often stand behind: one pass over rows by kernels of ours, for float32 on the CPU.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/kernels.h"

namespace nns::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::vector<int64_t> trailing(const at::Tensor& input, at::IntArrayRef normalized) {
  const int64_t n = static_cast<int64_t>(normalized.size());
  if (n == 0 || n > input.dim() || input.sizes().slice(input.dim() - n) != normalized)
    fail(ErrorKind::usage,
         "[ops.norm] an input of {} dimensions does not end in the {} that "
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

// --- composed of ATen operators, for all but float32 on the CPU --------------------------------

// input · rstd · weight with rstd = 1 / √(mean of squares + eps); returns both.
std::tuple<at::Tensor, at::Tensor> rms_composed(const at::Tensor& input, at::IntArrayRef normalized,
                                                const OptionalTensor& weight, double eps) {
  const at::Tensor x = widened(input);
  const at::Tensor rstd = at::mean(x.mul(x), trailing(input, normalized), true).add_(eps).rsqrt_();
  at::Tensor out = x.mul(rstd);
  if (weight) out = out.mul(*weight);
  return {out.to(input.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_composed_backward(
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

// --- float32 on the CPU --------------------------------------------------------------------------

constexpr int64_t kWork = 16384;  // elements that are worth a thread

bool plain(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}
bool served(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias) {
  return plain(input) && (!weight || plain(*weight)) && (!bias || plain(*bias));
}

const float* read(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}
float* write(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
}
const float* row_of(const float* x, int64_t row, int64_t width) {
  return x == nullptr ? nullptr : x + row * width;
}
float* row_of(float* x, int64_t row, int64_t width) {
  return x == nullptr ? nullptr : x + row * width;
}
at::Tensor dense(const OptionalTensor& x) {
  return x ? x->contiguous() : at::Tensor();
}

// Rows of a tensor, each the elements that are normalised together.
struct Rows {
  Rows(const at::Tensor& input, at::IntArrayRef normalized) : stats(input.sizes().vec()) {
    for (const int64_t d : trailing(input, normalized)) {
      width *= input.size(d);
      stats[static_cast<size_t>(d)] = 1;
    }
    count = width == 0 ? 0 : input.numel() / width;
  }
  std::vector<int64_t> stats;  // shape of one number a row
  int64_t width = 1, count = 0;
};

struct Normed {
  at::Tensor sum, out, mean, rstd;
};

Normed normalize(const at::Tensor& input, const OptionalTensor& addend, at::IntArrayRef normalized,
                 const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                 bool centred) {
  const Rows rows(input, normalized);
  const at::Tensor x = input.contiguous(), y = dense(addend), w = dense(weight), b = dense(bias);
  Normed n;
  n.out = at::empty_like(x);
  if (y.defined()) n.sum = at::empty_like(x);
  n.rstd = at::empty(rows.stats, x.options());
  if (centred) n.mean = at::empty(rows.stats, x.options());
  const int64_t width = rows.width,
                grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, width));
  const float *from = read(x), *more = read(y);
  float *sum = write(n.sum), *to = write(n.out), *mean = write(n.mean), *rstd = write(n.rstd);
  at::parallel_for(0, rows.count, grain, [&](int64_t begin, int64_t end) {
    normalize_rows({end - begin, width, static_cast<float>(eps), row_of(from, begin, width),
                    row_of(more, begin, width), read(w), read(b), row_of(sum, begin, width),
                    row_of(to, begin, width), row_of(mean, begin, 1), rstd + begin});
  });
  return n;
}

// Gradients of weight and bias are sums over parts of the rows that depend on their number alone,
// not on threads, added up in order.
struct Gradients {
  at::Tensor x, weight, bias;
};
Gradients normalize_backward(const at::Tensor& gradient, const at::Tensor& input,
                             at::IntArrayRef normalized, const at::Tensor& mean,
                             const at::Tensor& rstd, const OptionalTensor& weight,
                             const OptionalTensor& addend, std::array<bool, 3> wanted) {
  const Rows rows(input, normalized);
  const at::Tensor g = gradient.contiguous(), x = input.contiguous(), m = dense(mean);
  const at::Tensor r = rstd.contiguous(), w = dense(weight), more = dense(addend);
  const int64_t width = rows.width, parts = std::clamp<int64_t>(
                                        rows.count * width / kWork, 1,
                                        std::min<int64_t>(64, std::max<int64_t>(1, rows.count)));
  Gradients out;
  if (wanted[0]) out.x = at::empty_like(x);
  const auto sums = [&] { return at::zeros({parts, width}, x.options()); };
  const at::Tensor dw = wanted[1] ? sums() : at::Tensor(), db = wanted[2] ? sums() : at::Tensor();
  const float *from = read(x), *by = read(g), *centre = read(m), *scale = read(r),
              *add = read(more);
  float *dx = write(out.x), *to_weight = write(dw), *to_bias = write(db);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * rows.count / parts, last = (part + 1) * rows.count / parts;
      normalize_rows_backward({last - first, width, row_of(by, first, width),
                               row_of(from, first, width), row_of(centre, first, 1), scale + first,
                               read(w), row_of(add, first, width), row_of(dx, first, width),
                               row_of(to_weight, part, width), row_of(to_bias, part, width)});
    }
  });
  const auto total = [&](const at::Tensor& each) {
    return (parts == 1 ? each : each.sum(0)).view(normalized);
  };
  if (dw.defined()) out.weight = total(dw);
  if (db.defined()) out.bias = total(db);
  return out;
}

// --- operators -----------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, at::IntArrayRef normalized,
                                            const OptionalTensor& weight, double eps) {
  if (!served(input, weight, {})) return rms_composed(input, normalized, weight, eps);
  const Normed n = normalize(input, {}, normalized, weight, {}, eps, false);
  return {n.out, n.rstd};
}

// Addend of the normalised tensor's gradient, which another way to it has brought.
at::Tensor with_addend(const at::Tensor& gradient, const OptionalTensor& addend) {
  return addend && gradient.defined() ? gradient.add(*addend) : gradient;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& grad_output, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& rstd, const OptionalTensor& weight, std::array<bool, 2> output_mask,
    const OptionalTensor& addend) {
  if (!served(input, weight, addend) || !plain(grad_output)) {
    const auto [dx, dw] =
        rms_composed_backward(grad_output, input, normalized, rstd, weight, output_mask);
    return {with_addend(dx, addend), dw};
  }
  const Gradients g = normalize_backward(grad_output, input, normalized, {}, rstd, weight, addend,
                                         {output_mask[0], output_mask[1], false});
  return {g.x, g.weight};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& input,
                                                            const at::Tensor& addend,
                                                            at::IntArrayRef normalized,
                                                            const OptionalTensor& weight,
                                                            double eps) {
  if (!served(input, weight, addend) || addend.sizes() != input.sizes()) {
    const at::Tensor sum = input.add(addend);
    const auto [out, rstd] = rms_composed(sum, normalized, weight, eps);
    return {sum, out, rstd};
  }
  const Normed n = normalize(input, addend, normalized, weight, {}, eps, false);
  return {n.sum, n.out, n.rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input,
                                                          at::IntArrayRef normalized,
                                                          const OptionalTensor& weight,
                                                          const OptionalTensor& bias, double eps) {
  if (!served(input, weight, bias))
    return at::native_layer_norm(input, normalized, weight, bias, eps);
  const Normed n = normalize(input, {}, normalized, weight, bias, eps, true);
  return {n.out, n.mean, n.rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad_output, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& mean, const at::Tensor& rstd, const OptionalTensor& weight,
    const OptionalTensor& bias, std::array<bool, 3> output_mask, const OptionalTensor& addend) {
  if (!served(input, weight, addend) || !plain(grad_output)) {
    const auto [dx, dw, db] = at::native_layer_norm_backward(grad_output, input, normalized, mean,
                                                             rstd, weight, bias, output_mask);
    return {with_addend(dx, addend), dw, db};
  }
  const Gradients g =
      normalize_backward(grad_output, input, normalized, mean, rstd, weight, addend, output_mask);
  return {g.x, g.weight, g.bias};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm(
    const at::Tensor& input, const at::Tensor& addend, at::IntArrayRef normalized,
    const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  if (!served(input, weight, bias) || !plain(addend) || addend.sizes() != input.sizes()) {
    const at::Tensor sum = input.add(addend);
    const auto [out, mean, rstd] = at::native_layer_norm(sum, normalized, weight, bias, eps);
    return {sum, out, mean, rstd};
  }
  const Normed n = normalize(input, addend, normalized, weight, bias, eps, true);
  return {n.sum, n.out, n.mean, n.rstd};
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float eps) "
      "-> (Tensor, Tensor)");
  m.def(
      "rms_norm_backward(Tensor grad_output, Tensor input, int[] normalized_shape, Tensor rstd, "
      "Tensor? weight, bool[2] output_mask, Tensor? addend=None) -> (Tensor, Tensor)");
  m.def(
      "add_rms_norm(Tensor input, Tensor addend, int[] normalized_shape, Tensor? weight, "
      "float eps) -> (Tensor sum, Tensor out, Tensor rstd)");
  m.def(
      "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps) "
      "-> (Tensor out, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor grad_output, Tensor input, int[] normalized_shape, Tensor mean, "
      "Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask, Tensor? addend=None) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "add_layer_norm(Tensor input, Tensor addend, int[] normalized_shape, Tensor? weight, "
      "Tensor? bias, float eps) -> (Tensor sum, Tensor out, Tensor mean, Tensor rstd)");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("rms_norm_backward", rms_norm_backward);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("layer_norm", layer_norm);
  m.impl("layer_norm_backward", layer_norm_backward);
  m.impl("add_layer_norm", add_layer_norm);
}

}  // namespace
}  // namespace nns::ops
