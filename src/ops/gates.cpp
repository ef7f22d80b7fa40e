// nnscaler::swiglu and nnscaler::rope with their derivatives: the gate of LLaMA's feed-forward part
// and the turning of queries and keys by their positions, each in one pass: by kernels of ours for
// float32 on the CPU, and for it and 16 bits on a GPU.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/gpu.h"
#include "ops/kernels.h"

namespace nns::ops {
namespace {

constexpr int64_t kGrain = 8192;  // elements a thread gets at least

bool plain(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}

void check_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type())
    fail(ErrorKind::model, "[ops.swiglu] {} [{}] and {} [{}]; expected one type and shape",
         c10::toString(a.scalar_type()), fmt::join(a.sizes(), ", "), c10::toString(b.scalar_type()),
         fmt::join(b.sizes(), ", "));
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_alike(gate, up);
  const bool gpu = on_gpu({gate, up});
  if (!gpu && !plain(gate)) return at::silu(gate).mul(up);
  const at::Tensor x = gate.contiguous(), u = up.contiguous();
  const at::Tensor y = at::empty_like(x);
  if (gpu) {
    launch(x, &gpu::Kernels::swiglu,
           gpu::Swiglu{*gpu_type(x), x.numel(), gpu_read(x), gpu_read(u), gpu_write(y)});
    return y;
  }
  const float *of_x = x.const_data_ptr<float>(), *of_u = u.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ops::swiglu(of_x + begin, of_u + begin, to + begin, end - begin);
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& gradient,
                                                   const at::Tensor& gate, const at::Tensor& up) {
  check_alike(gate, up);
  check_alike(gradient, gate);
  const bool gpu = on_gpu({gate, up, gradient});
  if (!gpu && !plain(gate))
    return {at::silu_backward(gradient.mul(up), gate), gradient.mul(at::silu(gate))};
  const at::Tensor g = gradient.contiguous(), x = gate.contiguous(), u = up.contiguous();
  const at::Tensor dx = at::empty_like(x), du = at::empty_like(x);
  if (gpu) {
    launch(x, &gpu::Kernels::swiglu_backward,
           gpu::SwigluBackward{*gpu_type(x), x.numel(), gpu_read(g), gpu_read(x), gpu_read(u),
                               gpu_write(dx), gpu_write(du)});
    return {dx, du};
  }
  const float *of_g = g.const_data_ptr<float>(), *of_x = x.const_data_ptr<float>();
  const float* of_u = u.const_data_ptr<float>();
  float *to_x = dx.mutable_data_ptr<float>(), *to_u = du.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ops::swiglu_backward(of_g + begin, of_x + begin, of_u + begin, to_x + begin, to_u + begin,
                         end - begin);
  });
  return {dx, du};
}

// cos and sin [time, width] of the last two dimensions of x.
void check_tables(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const bool fits = x.dim() >= 2 && x.size(-1) % 2 == 0 && cos.sizes() == sin.sizes() &&
                    cos.sizes() == x.sizes().slice(x.dim() - 2);
  if (!fits || cos.scalar_type() != x.scalar_type() || sin.scalar_type() != x.scalar_type())
    fail(ErrorKind::model,
         "[ops.rope] {} [{}] with tables {} [{}] and {} [{}]; expected one type, […, time, width] "
         "of an even width and tables [time, width]",
         c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "),
         c10::toString(cos.scalar_type()), fmt::join(cos.sizes(), ", "),
         c10::toString(sin.scalar_type()), fmt::join(sin.sizes(), ", "));
}

// The halves of a row in the other order, the one that is then first negated.
at::Tensor turned(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[1].neg(), halves[0]}, -1);
}

at::Tensor rotate(const at::Tensor& input, const at::Tensor& cos_, const at::Tensor& sin_,
                  bool back) {
  const at::Tensor x =
      input.is_non_overlapping_and_dense() && input.stride(-1) == 1 ? input : input.contiguous();
  const at::Tensor cos = cos_.contiguous(), sin = sin_.contiguous();
  at::Tensor y = at::empty_like(x);  // rows lie where those of x do
  const int64_t width = x.size(-1), time = x.size(-2), axes = x.dim() - 1;
  const int64_t rows = width == 0 ? 0 : x.numel() / width;
  if (on_gpu({x})) {
    const auto last = static_cast<size_t>(axes);
    if (rows > 0)
      launch(x, &gpu::Kernels::rope,
             gpu::Rope{*gpu_type(x), back, rows, time, width,
                       gpu_axes(x.sizes().slice(0, last), x.strides().slice(0, last)), gpu_read(x),
                       gpu_read(cos), gpu_read(sin), gpu_write(y)});
    return y;
  }
  const float *from = x.const_data_ptr<float>(), *of_cos = cos.const_data_ptr<float>();
  const float* of_sin = sin.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       int64_t at = 0, rest = row;
                       for (int64_t d = axes - 1; d >= 0; rest /= x.size(d), --d)
                         at += rest % x.size(d) * x.stride(d);
                       const int64_t place = row % time * width;
                       rotate_row(from + at, of_cos + place, of_sin + place, to + at, width, back);
                     }
                   });
  return y;
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  check_tables(x, cos, sin);
  if (plain(x) || on_gpu({x, cos, sin})) return rotate(x, cos, sin, false);
  return x.mul(cos).add(turned(x).mul(sin));
}

at::Tensor rope_backward(const at::Tensor& gradient, const at::Tensor& cos, const at::Tensor& sin) {
  check_tables(gradient, cos, sin);
  if (plain(gradient) || on_gpu({gradient, cos, sin})) return rotate(gradient, cos, sin, true);
  return gradient.mul(cos).sub(turned(gradient.mul(sin)));
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)");
  m.def("rope(Tensor self, Tensor cos, Tensor sin) -> Tensor");
  m.def("rope_backward(Tensor grad_output, Tensor cos, Tensor sin) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("swiglu", swiglu);
  m.impl("swiglu_backward", swiglu_backward);
  m.impl("rope", rope);
  m.impl("rope_backward", rope_backward);
}

}  // namespace
}  // namespace nns::ops
