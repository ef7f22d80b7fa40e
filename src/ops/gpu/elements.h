// Gates, turns and dropout on a GPU: a lane takes n elements, or the four of a block of Philox.
#pragma once

#include <cmath>

#include "ops/gpu/block.h"
#include "ops/gpu/kernels.h"

namespace nns::ops::gpu {

// --- n elements side by side, fewer at the end ---------------------------------------------------

// Calls f.at<width>(first) for the elements of a lane.
template <int n, class F>
NNS_GPU void share(int64_t lane, int64_t count, const F& f) {
  const int64_t first = lane * n, end = first + n < count ? first + n : count;
  if (end - first == n) return f.template at<n>(first);
  for (int64_t i = first; i < end; ++i) f.template at<1>(i);
}

// 1 / (1 + exp(-x)).
NNS_GPU float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x)), tail = e / (1.0f + e);
  return x < 0 ? tail : 1.0f - tail;
}

template <class T, int n>
struct Gate {
  Swiglu a;

  NNS_GPU void operator()(int64_t lane) const { share<n>(lane, a.count, *this); }
  template <int m>
  NNS_GPU void at(int64_t i) const {
    const Floats<m> x = load<m>(static_cast<const T*>(a.gate) + i);
    Floats<m> y = load<m>(static_cast<const T*>(a.up) + i);
    for (int k = 0; k < m; ++k) y.at[k] *= x.at[k] * sigmoid(x.at[k]);
    store<m>(y, static_cast<T*>(a.y) + i);
  }
};

template <class T, int n>
struct GateBackward {
  SwigluBackward a;

  NNS_GPU void operator()(int64_t lane) const { share<n>(lane, a.count, *this); }
  template <int m>
  NNS_GPU void at(int64_t i) const {
    const Floats<m> g = load<m>(static_cast<const T*>(a.gradient) + i);
    const Floats<m> x = load<m>(static_cast<const T*>(a.gate) + i);
    const Floats<m> up = load<m>(static_cast<const T*>(a.up) + i);
    Floats<m> dgate, dup;
    for (int k = 0; k < m; ++k) {
      const float open = sigmoid(x.at[k]);
      dup.at[k] = g.at[k] * x.at[k] * open;
      dgate.at[k] = g.at[k] * up.at[k] * open * (1.0f + x.at[k] * (1.0f - open));
    }
    store<m>(dgate, static_cast<T*>(a.dgate) + i);
    store<m>(dup, static_cast<T*>(a.dup) + i);
  }
};

// --- rows that lie anywhere ----------------------------------------------------------------------

NNS_GPU int64_t place_of(const Axes& axes, int64_t index) {
  int64_t at = 0;
  for (int d = axes.count - 1; d >= 0; --d) {
    at += index % axes.sizes[d] * axes.strides[d];
    index /= axes.sizes[d];
  }
  return at;
}

// A lane turns n pairs; half the width is a multiple of n.
template <class T, int n>
struct Turn {
  Rope a;

  NNS_GPU void operator()(int64_t lane) const {
    const int64_t half = a.width / 2, lanes = half / n, row = lane / lanes, i = lane % lanes * n;
    const int64_t at = place_of(a.axes, row) + i, place = row % a.time * a.width + i;
    const T *x = static_cast<const T*>(a.x) + at, *cos = static_cast<const T*>(a.cos) + place,
            *sin = static_cast<const T*>(a.sin) + place;
    const Floats<n> left = load<n>(x), right = load<n>(x + half);
    const Floats<n> cos_left = load<n>(cos), cos_right = load<n>(cos + half);
    const Floats<n> sin_left = load<n>(sin), sin_right = load<n>(sin + half);
    Floats<n> low, high;
    for (int k = 0; k < n; ++k) {
      // Forward a pair reads the sine of the place that it is written to, back that of its own.
      const float to_low = a.back ? -sin_right.at[k] : sin_left.at[k];
      const float to_high = a.back ? -sin_left.at[k] : sin_right.at[k];
      low.at[k] = left.at[k] * cos_left.at[k] - right.at[k] * to_low;
      high.at[k] = right.at[k] * cos_right.at[k] + left.at[k] * to_high;
    }
    T* y = static_cast<T*>(a.y) + at;
    store<n>(low, y);
    store<n>(high, y + half);
  }
};

// --- draws ---------------------------------------------------------------------------------------

// Tiles that a run of elements may touch.
NNS_GPU int64_t tiles_of(int64_t run) {
  return (run + kTile - 2) / kTile + 1;
}

// A lane takes a block of Philox, whose four words belong to elements of a tile (word of philox.h):
// the lanes of a run follow each other, tile by tile.
template <class T, class Wide>
struct Keep {
  Dropout a;

  NNS_GPU void operator()(int64_t lane) const {
    const int64_t tiles = tiles_of(a.run), b = lane % kTileBlocks, run = lane / kTileBlocks / tiles;
    const int64_t first = a.start + place_of(a.axes, run);
    const int64_t tile = first / kTile + lane / kTileBlocks % tiles;
    const auto words = a.stream.block(static_cast<uint64_t>(tile * kTileBlocks + b));
    for (int w = 0; w < 4; ++w) {
      const int64_t inside = tile * kTile + w * kTileBlocks + b - first;
      if (inside < 0 || inside >= a.run) continue;
      const int64_t i = run * a.run + inside;
      const bool kept = words[static_cast<size_t>(w)] >= a.threshold;
      if (a.x == nullptr)
        static_cast<bool*>(a.y)[i] = kept;
      else
        static_cast<T*>(a.y)[i] =
            kept ? static_cast<T>(static_cast<Wide>(static_cast<const T*>(a.x)[i]) *
                                  static_cast<Wide>(a.scale))
                 : static_cast<T>(Wide(0));
    }
  }
};

}  // namespace nns::ops::gpu
