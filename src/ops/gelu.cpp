// nnscaler::gelu and its derivative: ATen's functions, for float32 in vectors of eight and accurate
// in relative terms down to the smallest results (ATen's 1 + erf(x) cancels below zero).
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/simd.h"

namespace nns::ops {
namespace {

enum class Form { exact, tanh };

Form form_of(c10::string_view approximate) {
  if (approximate == "none") return Form::exact;
  if (approximate == "tanh") return Form::tanh;
  fail(ErrorKind::usage, "[ops.gelu] approximate '{}'; expected 'none' or 'tanh'",
       std::string_view(approximate));
}

#if defined(__x86_64__)
constexpr int64_t kGrain = 8192;  // elements a thread gets at least

// The normal distribution: its upper tail beyond |x| and exp(-x²/2).
struct Normal {
  __m256 tail, bell;
};

NNS_AVX2_INLINE Normal normal8(__m256 x) {
  const __m256 far = _mm256_set1_ps(13.0f), one = _mm256_set1_ps(1.0f);
  __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  const __m256 near = _mm256_cmp_ps(a, far, _CMP_NGE_UQ);  // also NaN
  a = _mm256_min_ps(far, a);                               // of a NaN the second operand, a
  // exp(-a²/2) of a rounded square and its rounding error, which matters when it is large.
  const __m256 square = _mm256_mul_ps(a, a), rest = _mm256_fmsub_ps(a, a, square);
  const __m256 half = _mm256_set1_ps(-0.5f), e = _mm256_mul_ps(square, half);
  const __m256 k = _mm256_round_ps(_mm256_mul_ps(square, _mm256_set1_ps(-0.5f * 1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT);
  const __m256 r = _mm256_fmadd_ps(rest, half, less_powers8(e, k));
  const __m256 bell = _mm256_and_ps(near, exp_parts8(k, r));
  // tail · exp(a²/2) · (1 + a) as a polynomial in t = (a - 4) / (a + 4), least relative error on
  // 0 <= a <= 13.
  const __m256 sum = _mm256_add_ps(a, _mm256_set1_ps(4.0f)), next = _mm256_add_ps(a, one);
  const __m256 inverse = _mm256_div_ps(one, _mm256_mul_ps(sum, next));
  const __m256 t =
      _mm256_mul_ps(_mm256_mul_ps(_mm256_sub_ps(a, _mm256_set1_ps(4.0f)), next), inverse);
  const __m256 t2 = _mm256_mul_ps(t, t), t4 = _mm256_mul_ps(t2, t2);
  const __m256 p0 =
      _mm256_fmadd_ps(_mm256_set1_ps(-9.670300037e-02f), t, _mm256_set1_ps(4.720532000e-01f));
  const __m256 p2 =
      _mm256_fmadd_ps(_mm256_set1_ps(2.858818881e-02f), t, _mm256_set1_ps(1.399946213e-02f));
  const __m256 p4 =
      _mm256_fmadd_ps(_mm256_set1_ps(1.801856421e-02f), t, _mm256_set1_ps(-3.220020607e-02f));
  const __m256 p6 =
      _mm256_fmadd_ps(_mm256_set1_ps(-4.727350315e-04f), t, _mm256_set1_ps(-4.953800235e-03f));
  const __m256 high =
      _mm256_fmadd_ps(_mm256_set1_ps(5.323973019e-04f), t4, _mm256_fmadd_ps(p6, t2, p4));
  const __m256 p = _mm256_fmadd_ps(high, t4, _mm256_fmadd_ps(p2, t2, p0));
  return {_mm256_mul_ps(_mm256_mul_ps(p, bell), _mm256_mul_ps(sum, inverse)), bell};
}

// Where x is negative the first, elsewhere 1 minus it.
NNS_AVX2_INLINE __m256 below(__m256 x, __m256 tail) {
  return _mm256_blendv_ps(_mm256_sub_ps(_mm256_set1_ps(1.0f), tail), tail, x);
}

// 1 / (1 + exp(-2u)) for the u of the tanh form, and 2 du/dx.
struct Gate {
  __m256 open, slope;
};

NNS_AVX2_INLINE Gate gate8(__m256 x) {
  const __m256 twice = _mm256_set1_ps(1.59576912f), cubic = _mm256_set1_ps(0.044715f);
  const __m256 one = _mm256_set1_ps(1.0f), square = _mm256_mul_ps(x, x);
  const __m256 u = _mm256_mul_ps(_mm256_mul_ps(twice, x), _mm256_fmadd_ps(cubic, square, one));
  const __m256 e = exp8(_mm256_or_ps(u, _mm256_set1_ps(-0.0f)));
  const __m256 tail = _mm256_div_ps(e, _mm256_add_ps(one, e));
  const __m256 slope =
      _mm256_mul_ps(twice, _mm256_fmadd_ps(_mm256_set1_ps(3 * 0.044715f), square, one));
  return {below(x, tail), slope};
}

template <Form form>
NNS_AVX2_INLINE __m256 gelu8(__m256 x) {
  if constexpr (form == Form::exact)
    return _mm256_mul_ps(x, below(x, normal8(x).tail));
  else
    return _mm256_mul_ps(x, gate8(x).open);
}

template <Form form>
NNS_AVX2_INLINE __m256 derivative8(__m256 x) {
  if constexpr (form == Form::exact) {
    const Normal n = normal8(x);
    const __m256 density = _mm256_mul_ps(n.bell, _mm256_set1_ps(0.398942280f));
    return _mm256_fmadd_ps(x, density, below(x, n.tail));
  } else {
    const Gate g = gate8(x);
    const __m256 shut = _mm256_sub_ps(_mm256_set1_ps(1.0f), g.open);
    // The slope overflows only where the gate is shut or open for good.
    const __m256 bent = _mm256_mul_ps(g.open, shut);
    const __m256 more = _mm256_mul_ps(_mm256_mul_ps(x, bent), g.slope);
    const __m256 flat = _mm256_cmp_ps(bent, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_add_ps(g.open, _mm256_andnot_ps(flat, more));
  }
}

template <Form form>
NNS_AVX2 void gelu_run(const float* x, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_ps(y + i, gelu8<form>(_mm256_loadu_ps(x + i)));
  if (i == count) return;
  const __m256i mask = first_lanes(count - i);
  _mm256_maskstore_ps(y + i, mask, gelu8<form>(_mm256_maskload_ps(x + i, mask)));
}

template <Form form>
NNS_AVX2 void gelu_backward_run(const float* g, const float* x, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_ps(
        y + i, _mm256_mul_ps(_mm256_loadu_ps(g + i), derivative8<form>(_mm256_loadu_ps(x + i))));
  if (i == count) return;
  const __m256i mask = first_lanes(count - i);
  const __m256 d = derivative8<form>(_mm256_maskload_ps(x + i, mask));
  _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(_mm256_maskload_ps(g + i, mask), d));
}

bool served(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && have_avx2();
}

// The tensor itself where its elements fill a stretch of memory, in whatever order of axes.
at::Tensor dense(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : x.contiguous();
}
#endif

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  [[maybe_unused]] const Form form = form_of(approximate);
#if defined(__x86_64__)
  if (served(self)) {
    const at::Tensor x = dense(self);
    at::Tensor y = at::empty_like(x);
    const float* from = x.const_data_ptr<float>();
    float* to = y.mutable_data_ptr<float>();
    const auto run = form == Form::exact ? gelu_run<Form::exact> : gelu_run<Form::tanh>;
    at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      run(from + begin, to + begin, end - begin);
    });
    return y;
  }
#endif
  return at::gelu(self, approximate);
}

at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self,
                         c10::string_view approximate) {
  [[maybe_unused]] const Form form = form_of(approximate);
  if (grad_output.sizes() != self.sizes() || grad_output.scalar_type() != self.scalar_type())
    fail(ErrorKind::usage,
         "[ops.gelu_backward] gradient of type {} and shape [{}]; expected {} [{}]",
         c10::toString(grad_output.scalar_type()), fmt::join(grad_output.sizes(), ", "),
         c10::toString(self.scalar_type()), fmt::join(self.sizes(), ", "));
#if defined(__x86_64__)
  if (served(self)) {
    at::Tensor x = dense(self), g = grad_output;
    if (g.strides() != x.strides()) {
      x = x.contiguous();
      g = g.contiguous();
    }
    at::Tensor y = at::empty_like(x);
    const float *from = x.const_data_ptr<float>(), *by = g.const_data_ptr<float>();
    float* to = y.mutable_data_ptr<float>();
    const auto run =
        form == Form::exact ? gelu_backward_run<Form::exact> : gelu_backward_run<Form::tanh>;
    at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      run(by + begin, from + begin, to + begin, end - begin);
    });
    return y;
  }
#endif
  return at::gelu_backward(grad_output, self, approximate);
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("gelu(Tensor self, *, str approximate='none') -> Tensor");
  m.def("gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("gelu", gelu);
  m.impl("gelu_backward", gelu_backward);
}

}  // namespace
}  // namespace nns::ops
