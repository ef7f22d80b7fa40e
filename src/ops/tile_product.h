// Products of small float matrices, in tiles of six rows and two vectors that stay in registers.
// Operands lie in scratch memory whose rows are padded to whole tiles of columns. Included again
// for each instruction set (simd.h).
#if defined(NNS_OPS_TILE_PRODUCT_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NNS_OPS_TILE_PRODUCT_H
#undef NNS_OPS_TILE_PRODUCT_H
#else
#define NNS_OPS_TILE_PRODUCT_H
#endif

#include <algorithm>
#include <new>
#include <utility>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

constexpr int64_t kTileRows = 6, kTileColumns = 2 * kLanes;

constexpr int64_t whole_tiles(int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
}
// Floats from one row to the next: whole tiles, and an odd number of cache lines, so that a column
// of tiles does not fall on a few sets of the cache.
constexpr int64_t row_stride(int64_t columns) {
  constexpr int64_t kLine = std::max<int64_t>(16, kTileColumns);  // floats
  const int64_t whole = (whole_tiles(columns) + kLine - 1) / kLine * kLine;
  return whole / kLine % 2 == 0 ? whole + kLine : whole;
}

// Uninitialised floats on cache lines of their own, handed out piece by piece.
class Scratch {
 public:
  explicit Scratch(int64_t floats)
      : begin_(static_cast<float*>(
            ::operator new[](static_cast<size_t>(floats) * sizeof(float), std::align_val_t(64)))),
        next_(begin_) {}
  ~Scratch() { ::operator delete[](begin_, std::align_val_t(64)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `floats` must be a multiple of kTileColumns.
  float* take(int64_t floats) { return std::exchange(next_, next_ + floats); }

 private:
  float *begin_, *next_;
};

// The left operand: element (i, k) at data[i * row + k * column].
struct Left {
  const float* data;
  int64_t row, column;
};
// The right operand and the result: rows of columns that lie side by side.
struct Right {
  const float* data;
  int64_t row;
};
struct Result {
  float* data;
  int64_t row;
};

// c = a b, or c += a b, for M rows and the first N vectors of a tile's columns.
template <int M, int N, bool add>
HWY_INLINE void tile(Left a, Right b, Result c, int64_t depth) {
  V c0[M], c1[M];
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
    c0[i] = add ? load(c.data + i * c.row) : hn::Zero(kFloats);
    if constexpr (N > 1) c1[i] = add ? load(c.data + i * c.row + kLanes) : hn::Zero(kFloats);
  }
  const float *from = a.data, *with = b.data;
  for (int64_t k = 0; k < depth; ++k, from += a.column, with += b.row) {
    const V b0 = load(with), b1 = N > 1 ? load(with + kLanes) : b0;
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
      const V x = set(from[i * a.row]);
      c0[i] = hn::MulAdd(x, b0, c0[i]);
      if constexpr (N > 1) c1[i] = hn::MulAdd(x, b1, c1[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
    store(c0[i], c.data + i * c.row);
    if constexpr (N > 1) store(c1[i], c.data + i * c.row + kLanes);
  }
}

// One tile of 1 to 6 rows of which so many columns are wanted: one vector does where they fit.
template <bool add, int M = 6>
HWY_INLINE void tile_of(int64_t rows, int64_t columns, Left a, Right b, Result c, int64_t depth) {
  if constexpr (M > 1) {
    if (rows < M) return tile_of<add, M - 1>(rows, columns, a, b, c, depth);
  }
  return columns > kLanes ? tile<M, 2, add>(a, b, c, depth) : tile<M, 1, add>(a, b, c, depth);
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
