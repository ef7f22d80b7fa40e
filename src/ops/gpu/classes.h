// Rows of scores of classes on a GPU: log Σ exp in one pass, and what the softmax makes of a
// gradient in another.
#pragma once

#include <cmath>
#include <limits>

#include "ops/gpu/block.h"
#include "ops/gpu/kernels.h"

namespace nns::ops::gpu {

// Σ exp(x - most) with the greatest x so far, and Σ x.
struct Scores {
  float most = -std::numeric_limits<float>::infinity(), sum = 0, plain = 0;

  NNS_GPU void add(const Scores& other) {
    const float greatest = other.most > most ? other.most : most;
    sum = sum * shrunk(most, greatest) + other.sum * shrunk(other.most, greatest);
    most = greatest;
    plain += other.plain;
  }
  // exp(from - to), and 1 where both are the same infinity.
  NNS_GPU static float shrunk(float from, float to) {
    return from == to ? 1.0f : std::exp(from - to);
  }
};

template <class T, int n>
struct SumScores {
  LogSums a;

  template <class Block>
  NNS_GPU void operator()(Block& block, int64_t row) const {
    const T* x = static_cast<const T*>(a.scores) + row * a.classes;
    const Scores all = block.template reduce<n, Scores>(a.classes, [&](Scores& own, int64_t i) {
      const Floats<n> v = load<n>(x + i);
      Scores next;
      for (int k = 0; k < n; ++k) {
        next.most = v.at[k] > next.most ? v.at[k] : next.most;
        next.plain += v.at[k];
      }
      for (int k = 0; k < n; ++k) next.sum += Scores::shrunk(v.at[k], next.most);
      own.add(next);
    });
    block.once([&] {
      a.sums[row] = all.most + std::log(all.sum);
      if (a.own != nullptr) a.own[row] = static_cast<float>(x[a.labels[row]]);
      if (a.plain != nullptr) a.plain[row] = all.plain;
    });
  }
};

template <class T, int n>
struct ToSoftmax {
  Softmax a;

  template <class Block>
  NNS_GPU void operator()(Block& block, int64_t row) const {
    const T* x = static_cast<const T*>(a.scores) + row * a.classes;
    T* y = static_cast<T*>(a.y) + row * a.classes;
    const float by = a.by[row], sum = a.sums[row], less = a.less != nullptr ? a.less[row] : 0.0f;
    const int64_t label = a.own != nullptr ? a.labels[row] : -1;
    block.template each<n>(a.classes, [&](int64_t i) {
      Floats<n> v = load<n>(x + i);
      for (int k = 0; k < n; ++k) {
        v.at[k] = by == 0 ? 0.0f : by * std::exp(v.at[k] - sum) - less;
        if (i + k == label) v.at[k] += a.own[row];
      }
      store<n>(v, y + i);
    });
  }
};

}  // namespace nns::ops::gpu
