// Products of small float matrices for processors with AVX2 and FMA, in tiles of 6 x 16 that stay
// in registers. Operands lie in scratch memory whose rows are padded to whole tiles of columns.
#pragma once

#include "ops/simd.h"

#if defined(__x86_64__)
#include <algorithm>
#include <new>
#include <utility>

namespace nns::ops {

constexpr int64_t kTileRows = 6, kTileColumns = 16;

constexpr int64_t whole_tiles(int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
}
// Floats from one row to the next: whole tiles, and an odd number of cache lines, so that a column
// of tiles does not fall on a few sets of the cache.
constexpr int64_t row_stride(int64_t columns) {
  const int64_t whole = whole_tiles(columns);
  return whole / kTileColumns % 2 == 0 ? whole + kTileColumns : whole;
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

// c = a b, or c += a b, for M rows and 16 columns.
template <int M, bool add>
NNS_AVX2_INLINE void tile(Left a, Right b, Result c, int64_t depth) {
  __m256 c0[M], c1[M];
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
    c0[i] = add ? _mm256_loadu_ps(c.data + i * c.row) : _mm256_setzero_ps();
    c1[i] = add ? _mm256_loadu_ps(c.data + i * c.row + 8) : _mm256_setzero_ps();
  }
  const float *from = a.data, *with = b.data;
  for (int64_t k = 0; k < depth; ++k, from += a.column, with += b.row) {
    const __m256 b0 = _mm256_loadu_ps(with), b1 = _mm256_loadu_ps(with + 8);
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
      const __m256 x = _mm256_broadcast_ss(from + i * a.row);
      c0[i] = _mm256_fmadd_ps(x, b0, c0[i]);
      c1[i] = _mm256_fmadd_ps(x, b1, c1[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
    _mm256_storeu_ps(c.data + i * c.row, c0[i]);
    _mm256_storeu_ps(c.data + i * c.row + 8, c1[i]);
  }
}

// One tile of 1 to 6 rows.
template <bool add>
NNS_AVX2_INLINE void tile_of(int64_t rows, Left a, Right b, Result c, int64_t depth) {
  switch (rows) {
    case 1:
      return tile<1, add>(a, b, c, depth);
    case 2:
      return tile<2, add>(a, b, c, depth);
    case 3:
      return tile<3, add>(a, b, c, depth);
    case 4:
      return tile<4, add>(a, b, c, depth);
    case 5:
      return tile<5, add>(a, b, c, depth);
    default:
      return tile<6, add>(a, b, c, depth);
  }
}

}  // namespace nns::ops
#endif
