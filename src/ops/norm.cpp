// nnscaler::rms_norm and nnscaler::layer_norm with their derivatives, also with the sum that they
// often stand behind: one pass over rows by kernels of ours, for float32 on the CPU, and for it and
// 16 bits on a GPU.
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
#include "ops/gpu.h"
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

// --- composed of ATen operators, for all that kernels of ours do not serve ----------------------

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

// ATen's statistics of 16-bit rows have that type on a CPU; here they are float32 everywhere.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_composed(const at::Tensor& input,
                                                              at::IntArrayRef normalized,
                                                              const OptionalTensor& weight,
                                                              const OptionalTensor& bias,
                                                              double eps) {
  if (!input.is_cpu()) return at::native_layer_norm(input, normalized, weight, bias, eps);
  const auto wide = [](const OptionalTensor& x) { return x ? OptionalTensor(widened(*x)) : x; };
  const auto [out, mean, rstd] =
      at::native_layer_norm(widened(input), normalized, wide(weight), wide(bias), eps);
  return {out.to(input.scalar_type()), mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_composed_backward(
    const at::Tensor& grad_output, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& mean, const at::Tensor& rstd, const OptionalTensor& weight,
    const OptionalTensor& bias, std::array<bool, 3> output_mask) {
  if (!input.is_cpu())
    return at::native_layer_norm_backward(grad_output, input, normalized, mean, rstd, weight, bias,
                                          output_mask);
  const auto wide = [](const OptionalTensor& x) { return x ? OptionalTensor(widened(*x)) : x; };
  const auto [dx, dw, db] =
      at::native_layer_norm_backward(widened(grad_output), widened(input), normalized, mean, rstd,
                                     wide(weight), wide(bias), output_mask);
  const auto back = [](const at::Tensor& x, const at::Tensor& like) {
    return x.defined() ? x.to(like.scalar_type()) : x;
  };
  return {back(dx, input), back(dw, weight.value_or(input)), back(db, bias.value_or(input))};
}

// --- by kernels of ours --------------------------------------------------------------------------

constexpr int64_t kWork = 16384;  // elements that are worth a thread

bool plain(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}
bool served(std::initializer_list<at::Tensor> tensors) {
  return on_gpu(tensors) || std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) {
           return !x.defined() || plain(x);
         });
}
at::Tensor known(const OptionalTensor& x) {
  return x.value_or(at::Tensor());
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
  n.rstd = at::empty(rows.stats, x.options().dtype(at::kFloat));
  if (centred) n.mean = at::empty(rows.stats, n.rstd.options());
  if (on_gpu({x})) {
    launch(x, &gpu::Kernels::normalize,
           gpu::Norm{*gpu_type(x), rows.count, rows.width, static_cast<float>(eps), gpu_read(x),
                     gpu_read(y), gpu_read(w), gpu_read(b), gpu_write(n.sum), gpu_write(n.out),
                     write(n.mean), write(n.rstd)});
    return n;
  }
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
// not on threads or the GPU, added up in order.
constexpr int64_t kGpuParts = 512;  // enough for all multiprocessors
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
  const bool gpu = on_gpu({x});
  const int64_t width = rows.width, most = gpu ? kGpuParts : 64,
                parts = std::clamp<int64_t>(gpu ? rows.count : rows.count * width / kWork, 1,
                                            std::clamp<int64_t>(rows.count, 1, most));
  Gradients out;
  if (wanted[0]) out.x = at::empty_like(x);
  const auto sums = [&] {
    const auto options = x.options().dtype(at::kFloat);
    return gpu && rows.count > 0 ? at::empty({parts, width}, options)  // the kernel clears them
                                 : at::zeros({parts, width}, options);
  };
  const at::Tensor dw = wanted[1] ? sums() : at::Tensor(), db = wanted[2] ? sums() : at::Tensor();
  const auto total = [&](const at::Tensor& each) {
    return (parts == 1 ? each : each.sum(0)).to(x.scalar_type()).view(normalized);
  };
  const auto finish = [&] {
    if (dw.defined()) out.weight = total(dw);
    if (db.defined()) out.bias = total(db);
    return out;
  };
  if (gpu) {
    if (rows.count > 0)
      launch(x, &gpu::Kernels::normalize_backward,
             gpu::NormBackward{*gpu_type(x), rows.count, width, parts, gpu_read(g), gpu_read(x),
                               read(m), read(r), gpu_read(w), gpu_read(more), gpu_write(out.x),
                               write(dw), write(db)});
    return finish();
  }
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
  return finish();
}

// --- operators -----------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, at::IntArrayRef normalized,
                                            const OptionalTensor& weight, double eps) {
  if (!served({input, known(weight)})) return rms_composed(input, normalized, weight, eps);
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
  if (!served({input, known(weight), known(addend), grad_output})) {
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
  if (!served({input, known(weight), addend}) || addend.sizes() != input.sizes()) {
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
  if (!served({input, known(weight), known(bias)}))
    return layer_composed(input, normalized, weight, bias, eps);
  const Normed n = normalize(input, {}, normalized, weight, bias, eps, true);
  return {n.out, n.mean, n.rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad_output, const at::Tensor& input, at::IntArrayRef normalized,
    const at::Tensor& mean, const at::Tensor& rstd, const OptionalTensor& weight,
    const OptionalTensor& bias, std::array<bool, 3> output_mask, const OptionalTensor& addend) {
  if (!served({input, known(weight), known(addend), grad_output})) {
    const auto [dx, dw, db] = layer_composed_backward(grad_output, input, normalized, mean, rstd,
                                                      weight, bias, output_mask);
    return {with_addend(dx, addend), dw, db};
  }
  const Gradients g =
      normalize_backward(grad_output, input, normalized, mean, rstd, weight, addend, output_mask);
  return {g.x, g.weight, g.bias};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm(
    const at::Tensor& input, const at::Tensor& addend, at::IntArrayRef normalized,
    const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  if (!served({input, known(weight), known(bias), addend}) || addend.sizes() != input.sizes()) {
    const at::Tensor sum = input.add(addend);
    const auto [out, mean, rstd] = layer_composed(sum, normalized, weight, bias, eps);
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
