// Normalisation of rows: statistics and result while the row lies in the first-level cache.
#include <cmath>

#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_norm.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

// Σ (x[i] - mean)², in two sums a lane.
HWY_INLINE float sum_of_squares(const float* x, int64_t width, float mean) {
  const V less = set(mean);
  V a = hn::Zero(kFloats), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const V c = hn::Sub(load(x + i), less), d = hn::Sub(load(x + i + kLanes), less);
    a = hn::MulAdd(c, c, a);
    b = hn::MulAdd(d, d, b);
  }
  for (; i < width; i += kLanes) {
    const V c = first(hn::Sub(load(x + i, width - i), less), width - i);
    a = hn::MulAdd(c, c, a);
  }
  return sum_lanes(hn::Add(a, b));
}

HWY_INLINE float sum_of(const float* x, int64_t width) {
  V a = hn::Zero(kFloats), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    a = hn::Add(a, load(x + i));
    b = hn::Add(b, load(x + i + kLanes));
  }
  for (; i < width; i += kLanes) a = hn::Add(a, load(x + i, width - i));
  return sum_lanes(hn::Add(a, b));
}

HWY_INLINE void add_row(const float* x, const float* y, float* to, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes)
    store(hn::Add(load(x + i, width - i), load(y + i, width - i)), to + i, width - i);
}

void normalize(const NormRows& n) {
  const auto count = static_cast<float>(n.width);
  for (int64_t row = 0; row < n.rows; ++row) {
    const int64_t at = row * n.width;
    const float* x = n.x + at;
    if (n.addend != nullptr) {
      add_row(x, n.addend + at, n.sum + at, n.width);
      x = n.sum + at;
    }
    const float mean = n.mean != nullptr ? sum_of(x, n.width) / count : 0.0f;
    const float rstd = 1.0f / std::sqrt(sum_of_squares(x, n.width, mean) / count + n.eps);
    if (n.mean != nullptr) n.mean[row] = mean;
    n.rstd[row] = rstd;
    const V less = set(mean), by = set(rstd);
    for (int64_t i = 0; i < n.width; i += kLanes) {
      const int64_t left = n.width - i;
      V y = hn::Mul(hn::Sub(load(x + i, left), less), by);
      if (n.weight != nullptr) y = hn::Mul(y, load(n.weight + i, left));
      if (n.bias != nullptr) y = hn::Add(y, load(n.bias + i, left));
      store(y, n.y + at + i, left);
    }
  }
}

void normalize_backward(const NormRowsBackward& n) {
  const float share = 1.0f / static_cast<float>(n.width);
  for (int64_t row = 0; row < n.rows; ++row) {
    const int64_t at = row * n.width;
    const V less = set(n.mean != nullptr ? n.mean[row] : 0.0f), by = set(n.rstd[row]);
    // Sums of the scaled gradient, and of it times the normalised row.
    V sum = hn::Zero(kFloats), along = sum;
    for (int64_t i = 0; i < n.width; i += kLanes) {
      const int64_t left = n.width - i;
      const V g = load(n.gradient + at + i, left);
      const V unit = hn::Mul(hn::Sub(load(n.x + at + i, left), less), by);
      const V product = first(hn::Mul(g, unit), left);
      const V scale = n.weight != nullptr ? load(n.weight + i, left) : set(1.0f);
      sum = hn::MulAdd(g, scale, sum);
      along = hn::MulAdd(product, scale, along);
      if (n.dweight != nullptr)
        store(hn::Add(load(n.dweight + i, left), product), n.dweight + i, left);
      if (n.dbias != nullptr) store(hn::Add(load(n.dbias + i, left), g), n.dbias + i, left);
    }
    if (n.dx == nullptr) continue;
    const V shift = set(n.mean != nullptr ? sum_lanes(sum) * share : 0.0f);
    const V turn = set(sum_lanes(along) * share);
    for (int64_t i = 0; i < n.width; i += kLanes) {
      const int64_t left = n.width - i;
      V g = load(n.gradient + at + i, left);
      if (n.weight != nullptr) g = hn::Mul(g, load(n.weight + i, left));
      const V unit = hn::Mul(hn::Sub(load(n.x + at + i, left), less), by);
      V d = hn::Mul(by, hn::NegMulAdd(unit, turn, hn::Sub(g, shift)));
      if (n.addend != nullptr) d = hn::Add(d, load(n.addend + at + i, left));
      store(d, n.dx + at + i, left);
    }
  }
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(normalize);
void normalize_rows(const NormRows& n) {
  HWY_DYNAMIC_DISPATCH(normalize)(n);
}
HWY_EXPORT(normalize_backward);
void normalize_rows_backward(const NormRowsBackward& n) {
  HWY_DYNAMIC_DISPATCH(normalize_backward)(n);
}

}  // namespace nns::ops
#endif
