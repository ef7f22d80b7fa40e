// Rows of scores of classes: log Σ exp and what the softmax makes of a gradient. Sums run in double
// and in order, whatever the threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/simd.h"

namespace nns::ops {

constexpr int64_t kWork = 16384;  // elements that are worth a thread

#if defined(__x86_64__)
NNS_AVX2 inline double log_sum_exp_avx2(const float* x, int64_t count, float largest) {
  const __m256 shift = _mm256_set1_ps(largest);
  __m256d low = _mm256_setzero_pd(), high = low;
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m256i mask = first_lanes(std::min(kLanes, count - i));
    const __m256 e = _mm256_and_ps(_mm256_castsi256_ps(mask),
                                   exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), shift)));
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
  }
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(low, high));
  return largest + std::log((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
}

// to[i] = factor · exp(x[i] - shift) - less.
NNS_AVX2 inline void probabilities_avx2(const float* x, float* to, int64_t count, float shift,
                                        float factor, float less) {
  const __m256 by = _mm256_set1_ps(factor), minus = _mm256_set1_ps(less);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m256i mask = first_lanes(std::min(kLanes, count - i));
    const __m256 e = exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), _mm256_set1_ps(shift)));
    _mm256_maskstore_ps(to + i, mask, _mm256_fmsub_ps(by, e, minus));
  }
}
#endif

template <class T>
double log_sum_exp(const T* x, int64_t count) {
  T largest = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>)
    if (have_avx2()) return log_sum_exp_avx2(x, count, largest);
#endif
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
  return largest + std::log(sum);
}

// to[i] = factor · exp(x[i] - shift) - less; in place where `to` is x.
template <class T>
void probabilities(const T* x, T* to, int64_t count, T shift, T factor, T less) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>)
    if (have_avx2()) return probabilities_avx2(x, to, count, shift, factor, less);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = factor * std::exp(x[i] - shift) - less;
}

}  // namespace nns::ops
