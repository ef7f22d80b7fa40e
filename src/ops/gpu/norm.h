// Normalisation of rows on a GPU and its derivative: a block takes a row, or the rows of a part.
#pragma once

#include <cmath>

#include "ops/gpu/block.h"
#include "ops/gpu/kernels.h"

namespace nns::ops::gpu {

// The row is read once and stays in the block's scratch memory where it fits.
template <class T, int n>
struct Normalize {
  Norm a;

  template <class Block>
  NNS_GPU void operator()(Block& block, int64_t row) const {
    const int64_t at = row * a.width;
    const T* x = static_cast<const T*>(a.x) + at;
    const T* addend = static_cast<const T*>(a.addend);
    T* sum = static_cast<T*>(a.sum);
    T* y = static_cast<T*>(a.y) + at;
    const T *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
    float* held = block.scratch();
    const auto values = [&](int64_t i) {
      if (held != nullptr) return load<n>(held + i);
      return addend != nullptr ? load<n>(sum + at + i) : load<n>(x + i);
    };

    Sum<1> total = block.template reduce<n, Sum<1>>(a.width, [&](Sum<1>& own, int64_t i) {
      Floats<n> v = load<n>(x + i);
      if (addend != nullptr) {
        const Floats<n> more = load<n>(addend + at + i);
        // What is normalised is the sum as it is stored.
        for (int k = 0; k < n; ++k)
          v.at[k] = static_cast<float>(static_cast<T>(v.at[k] + more.at[k]));
        store<n>(v, sum + at + i);
      }
      if (held != nullptr) store<n>(v, held + i);
      for (int k = 0; k < n; ++k) own.at[0] += v.at[k];
    });
    const float count = static_cast<float>(a.width);
    const float mean = a.mean != nullptr ? total.at[0] / count : 0.0f;
    total = block.template reduce<n, Sum<1>>(a.width, [&](Sum<1>& own, int64_t i) {
      const Floats<n> v = values(i);
      for (int k = 0; k < n; ++k) own.at[0] += (v.at[k] - mean) * (v.at[k] - mean);
    });
    const float rstd = 1.0f / std::sqrt(total.at[0] / count + a.eps);
    block.once([&] {
      if (a.mean != nullptr) a.mean[row] = mean;
      a.rstd[row] = rstd;
    });
    block.template each<n>(a.width, [&](int64_t i) {
      const Floats<n> v = values(i), w = load_or<n>(weight, i, 1), b = load_or<n>(bias, i, 0);
      Floats<n> out;
      for (int k = 0; k < n; ++k) out.at[k] = (v.at[k] - mean) * rstd * w.at[k] + b.at[k];
      store<n>(out, y + i);
    });
  }
};

// Part p takes rows p · rows / parts to (p + 1) · rows / parts; sums over its rows stay in scratch
// memory where they fit.
template <class T, int n>
struct NormalizeBackward {
  NormBackward a;

  template <class Block>
  NNS_GPU void operator()(Block& block, int64_t part) const {
    const T* weight = static_cast<const T*>(a.weight);
    float* to_weight = a.dweight != nullptr ? a.dweight + part * a.width : nullptr;
    float* to_bias = a.dbias != nullptr ? a.dbias + part * a.width : nullptr;
    float* const held = block.scratch();
    float* dweight = held != nullptr && to_weight != nullptr ? held : to_weight;
    float* dbias = held != nullptr && to_bias != nullptr
                       ? held + (to_weight != nullptr ? a.width : 0)
                       : to_bias;
    block.template each<n>(a.width, [&](int64_t i) {
      const Floats<n> zero = {};
      if (dweight != nullptr) store<n>(zero, dweight + i);
      if (dbias != nullptr) store<n>(zero, dbias + i);
    });
    const int64_t end = (part + 1) * a.rows / a.parts;
    for (int64_t row = part * a.rows / a.parts; row < end; ++row)
      one(block, row, weight, dweight, dbias);
    block.template each<n>(a.width, [&](int64_t i) {
      if (dweight != to_weight) store<n>(load<n>(dweight + i), to_weight + i);
      if (dbias != to_bias) store<n>(load<n>(dbias + i), to_bias + i);
    });
  }

 private:
  template <class Block>
  NNS_GPU void one(Block& block, int64_t row, const T* weight, float* dweight, float* dbias) const {
    const int64_t at = row * a.width;
    const T *gradient = static_cast<const T*>(a.gradient) + at,
            *x = static_cast<const T*>(a.x) + at, *addend = static_cast<const T*>(a.addend);
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    // Sums of the scaled gradient, and of it times the normalised row.
    const Sum<2> sums = block.template reduce<n, Sum<2>>(a.width, [&](Sum<2>& own, int64_t i) {
      const Floats<n> g = load<n>(gradient + i), v = load<n>(x + i), w = load_or<n>(weight, i, 1);
      Floats<n> product;
      for (int k = 0; k < n; ++k) {
        product.at[k] = g.at[k] * (v.at[k] - mean) * rstd;
        own.at[0] += g.at[k] * w.at[k];
        own.at[1] += product.at[k] * w.at[k];
      }
      if (dweight != nullptr) add(product, dweight + i);
      if (dbias != nullptr) add(g, dbias + i);
    });
    if (a.dx == nullptr) return;
    const float share = 1.0f / static_cast<float>(a.width);
    const float shift = a.mean != nullptr ? sums.at[0] * share : 0.0f, turn = sums.at[1] * share;
    T* dx = static_cast<T*>(a.dx) + at;
    block.template each<n>(a.width, [&](int64_t i) {
      const Floats<n> g = load<n>(gradient + i), v = load<n>(x + i), w = load_or<n>(weight, i, 1);
      Floats<n> d = addend != nullptr ? load<n>(addend + at + i) : Floats<n>{};
      for (int k = 0; k < n; ++k)
        d.at[k] += rstd * (g.at[k] * w.at[k] - shift - (v.at[k] - mean) * rstd * turn);
      store<n>(d, dx + i);
    });
  }

  NNS_GPU static void add(const Floats<n>& x, float* to) {
    Floats<n> sum = load<n>(to);
    for (int k = 0; k < n; ++k) sum.at[k] += x.at[k];
    store<n>(sum, to);
  }
};

}  // namespace nns::ops::gpu
