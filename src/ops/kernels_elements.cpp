// Gates, turns and conversions, element by element.
#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_elements.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

constexpr hn::RebindToUnsigned<decltype(kFloats)> kBits;
constexpr hn::Rebind<uint16_t, decltype(kFloats)> kHalves;

void widen(const uint16_t* x, float* y, int64_t count) {
  const auto part = [&](const uint16_t* from, float* to) HWY_ATTR {
    const auto bits = hn::PromoteTo(kBits, hn::LoadU(kHalves, from));
    store(hn::BitCast(kFloats, hn::ShiftLeft<16>(bits)), to);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) part(x + i, y + i);
  if (i == count) return;
  HWY_ALIGN uint16_t from[kLanes] = {};
  HWY_ALIGN float to[kLanes];
  std::memcpy(from, x + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
  part(from, to);
  std::memcpy(y + i, to, static_cast<size_t>(count - i) * sizeof(float));
}

void narrow(const float* x, uint16_t* y, int64_t count) {
  const auto part = [&](V value, uint16_t* to) HWY_ATTR {
    const auto bits = hn::BitCast(kBits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBits, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kBits, 0x7fff)));
    const auto nan = hn::RebindMask(kBits, hn::IsNaN(value));
    const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, hn::Set(kBits, 0x7fc00000), rounded));
    hn::StoreU(hn::TruncateTo(kHalves, high), kHalves, to);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) part(load(x + i), y + i);
  if (i == count) return;
  HWY_ALIGN uint16_t to[kLanes];
  part(load(x + i, count - i), to);
  std::memcpy(y + i, to, static_cast<size_t>(count - i) * sizeof(uint16_t));
}

void drop(const float* x, const uint32_t* words, uint32_t limit, float scale, float* y,
          int64_t count) {
  const auto least = hn::Set(kBits, limit);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto word = hn::LoadU(kBits, words + i);
    const auto kept = hn::RebindMask(kFloats, hn::Eq(hn::Max(word, least), word));  // word >= least
    store(hn::IfThenElseZero(kept, hn::Mul(load(x + i), set(scale))), y + i);
  }
  for (; i < count; ++i) y[i] = words[i] >= limit ? x[i] * scale : 0.0f;
}

// Eight sums, of every eighth element each. Products are rounded before they are added: so they
// are alike where there is no fused multiplication.
template <class T>
HWY_INLINE double squares(const T* x, int64_t count) {
  constexpr int64_t kSums = 8;
  constexpr hn::CappedTag<double, kSums> wide;
  constexpr auto kWide = static_cast<int64_t>(hn::MaxLanes(wide));
  constexpr hn::Rebind<T, decltype(wide)> given;
  hn::Vec<decltype(wide)> sums[kSums / kWide];
  for (auto& sum : sums) sum = hn::Zero(wide);
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int64_t part = 0; part < kSums / kWide; ++part) {
      const auto from = hn::LoadU(given, x + i + part * kWide);
      hn::Vec<decltype(wide)> v;
      if constexpr (sizeof(T) == sizeof(double))
        v = from;
      else
        v = hn::PromoteTo(wide, from);
      sums[part] = hn::Add(hn::Mul(v, v), sums[part]);
    }
  HWY_ALIGN double lanes[kSums];
  for (int64_t part = 0; part < kSums / kWide; ++part)
    hn::Store(sums[part], wide, lanes + part * kWide);
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const double v = x[i];
    lanes[lane] += v * v;
  }
  double total = 0;
  for (double sum : lanes) total += sum;
  return total;
}

double squares_of_floats(const float* x, int64_t count) {
  return squares(x, count);
}
double squares_of_doubles(const double* x, int64_t count) {
  return squares(x, count);
}

void swiglu(const float* gate, const float* up, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const V x = load(gate + i, count - i);
    store(hn::Mul(hn::Mul(x, sigmoid(x)), load(up + i, count - i)), y + i, count - i);
  }
}

void swiglu_backward(const float* gradient, const float* gate, const float* up, float* dgate,
                     float* dup, int64_t count) {
  const V one = set(1.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const V g = load(gradient + i, left), x = load(gate + i, left);
    const V open = sigmoid(x);
    const V slope = hn::Mul(open, hn::MulAdd(x, hn::Sub(one, open), one));
    store(hn::Mul(g, hn::Mul(x, open)), dup + i, left);
    store(hn::Mul(hn::Mul(g, load(up + i, left)), slope), dgate + i, left);
  }
}

void rotate(const float* x, const float* cos, const float* sin, float* y, int64_t width,
            bool back) {
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const V a = load(x + i, left), b = load(x + half + i, left);
    // Forward a pair reads the sine of the place that it is written to, back that of its own.
    V low = load(sin + i, left), high = load(sin + half + i, left);
    if (back) {
      const V own = hn::Neg(low);
      low = hn::Neg(high);
      high = own;
    }
    store(hn::NegMulAdd(b, low, hn::Mul(a, load(cos + i, left))), y + i, left);
    store(hn::MulAdd(a, high, hn::Mul(b, load(cos + half + i, left))), y + half + i, left);
  }
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(widen);
void widen(const uint16_t* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(widen)(x, y, count);
}
HWY_EXPORT(narrow);
void narrow(const float* x, uint16_t* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(narrow)(x, y, count);
}
HWY_EXPORT(drop);
void drop(const float* x, const uint32_t* words, uint32_t limit, float scale, float* y,
          int64_t count) {
  HWY_DYNAMIC_DISPATCH(drop)(x, words, limit, scale, y, count);
}
HWY_EXPORT(squares_of_floats);
double sum_of_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(squares_of_floats)(x, count);
}
HWY_EXPORT(squares_of_doubles);
double sum_of_squares(const double* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(squares_of_doubles)(x, count);
}
HWY_EXPORT(swiglu);
void swiglu(const float* gate, const float* up, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu)(gate, up, y, count);
}
HWY_EXPORT(swiglu_backward);
void swiglu_backward(const float* gradient, const float* gate, const float* up, float* dgate,
                     float* dup, int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward)(gradient, gate, up, dgate, dup, count);
}
HWY_EXPORT(rotate);
void rotate_row(const float* x, const float* cos, const float* sin, float* y, int64_t width,
                bool back) {
  HWY_DYNAMIC_DISPATCH(rotate)(x, cos, sin, y, width, back);
}

}  // namespace nns::ops
#endif
