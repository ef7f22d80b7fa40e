// Rows of scores of classes: log Σ exp and what the softmax makes of a gradient. Sums run in double
// and in order, whatever the threads; float32 has kernels of its own (kernels.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/kernels.h"

namespace nns::ops {

constexpr int64_t kWork = 16384;  // elements that are worth a thread

template <class T>
double log_sum_exp(const T* x, int64_t count) {
  T largest = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  if constexpr (std::is_same_v<T, float>) {
    return log_sum_exp(x, count, largest);
  } else {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
    return largest + std::log(sum);
  }
}

// to[i] = factor · exp(x[i] - shift) - less; in place where `to` is x.
template <class T>
void probabilities(const T* x, T* to, int64_t count, T shift, T factor, T less) {
  for (int64_t i = 0; i < count; ++i) to[i] = factor * std::exp(x[i] - shift) - less;
}

}  // namespace nns::ops
