// Rows of scores of classes: the logarithm of their sum of powers, and their probabilities.
#include <cmath>

#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_classes.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

double log_sum(const float* x, int64_t count, float largest) {
  constexpr hn::ScalableTag<double> doubles;
  constexpr hn::Rebind<float, decltype(doubles)> halves;
  const V shift = set(largest);
  auto sum = hn::Zero(doubles);
  for (int64_t i = 0; i < count; i += kLanes) {
    const V e = first(exp(hn::Sub(load(x + i, count - i), shift)), count - i);
    HWY_ALIGN float lanes[kLanes];
    hn::Store(e, kFloats, lanes);
    for (size_t j = 0; j < kLanes; j += hn::MaxLanes(doubles))
      sum = hn::Add(sum, hn::PromoteTo(doubles, hn::Load(halves, lanes + j)));
  }
  return largest + std::log(hn::GetLane(hn::SumOfLanes(doubles, sum)));
}

void write_probabilities(const float* x, float* to, int64_t count, float shift, float factor,
                         float less) {
  const V by = set(factor), minus = set(less), from = set(shift);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    store(hn::MulSub(by, exp(hn::Sub(load(x + i, left), from)), minus), to + i, left);
  }
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(log_sum);
double log_sum_exp(const float* x, int64_t count, float largest) {
  return HWY_DYNAMIC_DISPATCH(log_sum)(x, count, largest);
}
HWY_EXPORT(write_probabilities);
void probabilities(const float* x, float* to, int64_t count, float shift, float factor,
                   float less) {
  HWY_DYNAMIC_DISPATCH(write_probabilities)(x, to, count, shift, factor, less);
}

}  // namespace nns::ops
#endif
