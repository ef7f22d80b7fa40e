// gelu and its derivative, accurate in relative terms down to the smallest results (ATen's
// 1 + erf(x) cancels below zero).
#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_gelu.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

// The normal distribution: its upper tail beyond |x| and exp(-x²/2).
struct Normal {
  V tail, bell;
};

HWY_INLINE Normal normal(V x) {
  const V far = set(13.0f), one = set(1.0f), size = hn::Abs(x);
  const auto beyond = hn::Ge(size, far);
  const V a = hn::IfThenElse(beyond, far, size);
  // exp(-a²/2) of a square and what it lacks, which matters when it is large.
#if HWY_NATIVE_FMA
  const V square = hn::Mul(a, a), rest = hn::MulSub(a, a, square);
#else  // the square of its upper 12 bits is exact
  constexpr hn::RebindToUnsigned<decltype(kFloats)> bits;
  const V head = hn::BitCast(kFloats, hn::And(hn::BitCast(bits, a), hn::Set(bits, 0xFFFFF000u)));
  const V square = hn::Mul(head, head), rest = hn::Mul(hn::Sub(a, head), hn::Add(a, head));
#endif
  const V half = set(-0.5f), e = hn::Mul(square, half);
  const V k = hn::Round(hn::Mul(square, set(-0.5f * 1.44269504f)));
  const V r = hn::MulAdd(rest, half, less_powers(e, k));
  const V bell = hn::IfThenZeroElse(beyond, exp_parts(k, r));
  // tail · exp(a²/2) · (1 + a) as a polynomial in t = (a - 4) / (a + 4), least relative error on
  // 0 <= a <= 13.
  const V sum = hn::Add(a, set(4.0f)), next = hn::Add(a, one);
  const V inverse = hn::Div(one, hn::Mul(sum, next));
  const V t = hn::Mul(hn::Mul(hn::Sub(a, set(4.0f)), next), inverse);
  const V t2 = hn::Mul(t, t), t4 = hn::Mul(t2, t2);
  const V p0 = hn::MulAdd(set(-9.670300037e-02f), t, set(4.720532000e-01f));
  const V p2 = hn::MulAdd(set(2.858818881e-02f), t, set(1.399946213e-02f));
  const V p4 = hn::MulAdd(set(1.801856421e-02f), t, set(-3.220020607e-02f));
  const V p6 = hn::MulAdd(set(-4.727350315e-04f), t, set(-4.953800235e-03f));
  const V high = hn::MulAdd(set(5.323973019e-04f), t4, hn::MulAdd(p6, t2, p4));
  const V p = hn::MulAdd(high, t4, hn::MulAdd(p2, t2, p0));
  return {hn::Mul(hn::Mul(p, bell), hn::Mul(sum, inverse)), bell};
}

// Where x is negative the second, elsewhere 1 minus it.
HWY_INLINE V below(V x, V tail) {
  return hn::IfNegativeThenElse(x, tail, hn::Sub(set(1.0f), tail));
}

// 1 / (1 + exp(-2u)) for the u of the tanh form, and 2 du/dx.
struct Gate {
  V open, slope;
};

HWY_INLINE Gate gate(V x) {
  const V twice = set(1.59576912f), square = hn::Mul(x, x), one = set(1.0f);
  const V u = hn::Mul(hn::Mul(twice, x), hn::MulAdd(set(0.044715f), square, one));
  return {sigmoid(u), hn::Mul(twice, hn::MulAdd(set(3 * 0.044715f), square, one))};
}

HWY_INLINE V value(GeluForm form, V x) {
  return hn::Mul(x, form == GeluForm::exact ? below(x, normal(x).tail) : gate(x).open);
}

HWY_INLINE V derivative(GeluForm form, V x) {
  if (form == GeluForm::exact) {
    const Normal n = normal(x);
    return hn::MulAdd(x, hn::Mul(n.bell, set(0.398942280f)), below(x, n.tail));
  }
  const Gate g = gate(x);
  // The slope overflows only where the gate is shut or open for good.
  const V bent = hn::Mul(g.open, hn::Sub(set(1.0f), g.open));
  const V more = hn::Mul(hn::Mul(x, bent), g.slope);
  return hn::Add(g.open, hn::IfThenZeroElse(hn::Eq(bent, hn::Zero(kFloats)), more));
}

template <GeluForm form>
void run(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes)
    store(value(form, load(x + i, count - i)), y + i, count - i);
}
void gelu_of(GeluForm form, const float* x, float* y, int64_t count) {
  form == GeluForm::exact ? run<GeluForm::exact>(x, y, count) : run<GeluForm::tanh>(x, y, count);
}

template <GeluForm form>
void run_backward(const float* g, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    store(hn::Mul(load(g + i, left), derivative(form, load(x + i, left))), y + i, left);
  }
}
void gelu_of_backward(GeluForm form, const float* g, const float* x, float* y, int64_t count) {
  form == GeluForm::exact ? run_backward<GeluForm::exact>(g, x, y, count)
                          : run_backward<GeluForm::tanh>(g, x, y, count);
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(gelu_of);
void gelu(GeluForm form, const float* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_of)(form, x, y, count);
}
HWY_EXPORT(gelu_of_backward);
void gelu_backward(GeluForm form, const float* gradient, const float* x, float* dx, int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_of_backward)(form, gradient, x, dx, count);
}

}  // namespace nns::ops
#endif
