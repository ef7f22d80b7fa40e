// The vector type of our kernels (Highway): a file that includes this is compiled once for each
// instruction set, in a namespace of its own, and the widest that the processor has is called.
// Included again for each, so no #pragma once.
#if defined(NNS_OPS_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NNS_OPS_SIMD_H
#undef NNS_OPS_SIMD_H
#else
#define NNS_OPS_SIMD_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kFloats;
using V = hn::Vec<decltype(kFloats)>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(kFloats));

HWY_INLINE V set(float x) {
  return hn::Set(kFloats, x);
}
HWY_INLINE V load(const float* from) {
  return hn::LoadU(kFloats, from);
}
HWY_INLINE void store(V x, float* to) {
  hn::StoreU(x, kFloats, to);
}

// The first `count` lanes from memory that ends behind them; zeros in the others.
HWY_INLINE V load(const float* from, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return load(from);
  HWY_ALIGN float lanes[kLanes] = {};
  std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(float));
  return hn::Load(kFloats, lanes);
}
HWY_INLINE void store(V x, float* to, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return store(x, to);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(x, kFloats, lanes);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
}

// x, with zeros behind the first `count` lanes.
HWY_INLINE V first(V x, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return x;
  return hn::IfThenElseZero(hn::FirstN(kFloats, static_cast<size_t>(count)), x);
}

HWY_INLINE float sum_lanes(V x) {
  return hn::GetLane(hn::SumOfLanes(kFloats, x));
}

// exp(k ln 2 + r) for whole k from -125 to 127 and |r| <= ln(2)/2, to 1e-7 relative.
HWY_INLINE V exp_parts(V k, V r) {
  // (exp(r) - 1 - r) / r², least relative error of exp(r).
  const V square = hn::Mul(r, r);
  const V low = hn::MulAdd(set(1.666651964e-01f), r, set(4.999999404e-01f));
  const V middle = hn::MulAdd(set(1.381446724e-03f), r, set(8.368780836e-03f));
  const V p = hn::MulAdd(hn::MulAdd(middle, r, set(4.166839272e-02f)), square, low);
  const V power = hn::Add(hn::MulAdd(square, p, r), set(1.0f));
  const hn::RebindToSigned<decltype(kFloats)> integers;
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(integers, k));
  return hn::BitCast(kFloats, hn::Add(hn::BitCast(integers, power), exponent));
}

// x - k ln 2, exactly but for the last bit.
HWY_INLINE V less_powers(V x, V k) {
  const V r = hn::NegMulAdd(k, set(0.693145752f), x);  // its first 16 bits
  return hn::NegMulAdd(k, set(1.42860677e-6f), r);
}

// exp(x) to 1e-7 relative; zero below -87, NaN for NaN. x must not exceed 88.
HWY_INLINE V exp(V x) {
  const V lowest = set(-87.0f);
  const auto dead = hn::Lt(x, lowest);
  const V at = hn::IfThenElse(dead, lowest, x);
  const V k = hn::Round(hn::Mul(at, set(1.44269504f)));
  return hn::IfThenZeroElse(dead, exp_parts(k, less_powers(at, k)));
}

// 1 / (1 + exp(-x)).
HWY_INLINE V sigmoid(V x) {
  const V one = set(1.0f), e = exp(hn::Neg(hn::Abs(x)));
  const V tail = hn::Div(e, hn::Add(one, e));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(kFloats)), tail, hn::Sub(one, tail));
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
