// Products of float32 matrices: the right operand is laid out in panels, a block of its rows at a
// time, and tiles of the result stay in registers while they run along it. Each element is summed
// in the order of the inner dimension, whatever tile it lies in.
#include <algorithm>
#include <utility>

#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_product.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {
namespace product_detail {

// A tile: with its two vectors of columns and one of the right operand it fills the registers.
constexpr int64_t kRows = HWY_TARGET <= HWY_AVX3 ? 14 : 6, kColumns = 2 * kLanes;
// A block: its share of the left operand stays in the second cache.
constexpr int64_t kDepth = 384, kBlockRows = HWY_TARGET <= HWY_AVX3 ? 224 : 192;

struct Tile {
  const float* a;  // element (i, k) at a[i * row + k * column]
  int64_t row, column;
  const float* b;  // element (k, j) at b[k * kColumns + j]
  float* c;
  int64_t c_row;
  int64_t depth, columns;
  const float* start;  // what is added to: nothing, one row for all, or c
  int64_t start_row;
};

// M rows of the tile, and its first N vectors of columns.
template <int N, int... I>
HWY_INLINE void multiply(const Tile& t, std::integer_sequence<int, I...>) {
  constexpr int M = sizeof...(I);
  V c0[M], c1[M];
  const auto start = [&](int i, int64_t j) HWY_ATTR {
    return t.start ? load(t.start + i * t.start_row + j, t.columns - j) : hn::Zero(kFloats);
  };
  ((c0[I] = start(I, 0)), ...);
  if constexpr (N > 1) ((c1[I] = start(I, kLanes)), ...);
  const float *a = t.a, *b = t.b;
  const int64_t row = t.row, column = t.column;
  for (int64_t k = t.depth; k > 0; --k, a += column, b += kColumns) {
    const V b0 = hn::Load(kFloats, b), b1 = hn::Load(kFloats, b + kLanes);
    const auto step = [&](int i) HWY_ATTR {
      const V left = set(a[i * row]);
      c0[i] = hn::MulAdd(left, b0, c0[i]);
      if constexpr (N > 1) c1[i] = hn::MulAdd(left, b1, c1[i]);
    };
    (step(I), ...);
  }
  (store(c0[I], t.c + I * t.c_row, t.columns), ...);
  if constexpr (N > 1) (store(c1[I], t.c + I * t.c_row + kLanes, t.columns - kLanes), ...);
}

template <int M>
HWY_INLINE void tile(int64_t rows, const Tile& t) {
  if constexpr (M > 0) {
    if (rows != M) return tile<M - 1>(rows, t);
    constexpr std::make_integer_sequence<int, M> all{};
    return t.columns > kLanes ? multiply<2>(t, all) : multiply<1>(t, all);
  }
}

// [depth, columns] of the right operand as panels of kColumns columns, the last padded by zeros.
void pack_right(const float* b, int64_t row, int64_t column, int64_t depth, int64_t columns,
                float* to) {
  for (int64_t j = 0; j < columns; j += kColumns) {
    const int64_t width = std::min(kColumns, columns - j);
    if (column == 1) {
      for (int64_t k = 0; k < depth; ++k, to += kColumns) {
        const float* from = b + k * row + j;
        for (int64_t v = 0; v < kColumns; v += kLanes)
          hn::Store(v < width ? load(from + v, width - v) : hn::Zero(kFloats), kFloats, to + v);
      }
      continue;
    }
    for (int64_t k0 = 0; k0 < depth; k0 += 16) {
      const int64_t some = std::min<int64_t>(16, depth - k0);
      for (int64_t i = 0; i < kColumns; ++i) {
        const float* from = b + k0 * row + (j + i) * column;
        for (int64_t k = 0; k < some; ++k)
          to[(k0 + k) * kColumns + i] = i < width ? from[k * row] : 0;
      }
    }
    to += depth * kColumns;
  }
}

}  // namespace product_detail

int64_t product_scratch(int64_t depth, int64_t columns) {
  using namespace product_detail;
  return (columns + kColumns - 1) / kColumns * kColumns * std::min(kDepth, depth);
}

void product(const Product& p, float* panels) {
  using namespace product_detail;
  for (int64_t k = 0; k < p.depth; k += kDepth) {
    const int64_t depth = std::min(kDepth, p.depth - k);
    pack_right(p.b + k * p.b_row, p.b_row, p.b_column, depth, p.columns, panels);
    for (int64_t first = 0; first < p.rows; first += kBlockRows) {
      const int64_t end = std::min(p.rows, first + kBlockRows);
      for (int64_t j = 0; j < p.columns; j += kColumns)
        for (int64_t i = first; i < end; i += kRows) {
          float* c = p.c + i * p.c_row + j;
          const float* bias = p.bias == nullptr ? nullptr : p.bias + j;
          tile<kRows>(std::min(kRows, end - i),
                      {p.a + i * p.a_row + k * p.a_column, p.a_row, p.a_column, panels + j * depth,
                       c, p.c_row, depth, std::min(kColumns, p.columns - j), k > 0 ? c : bias,
                       k > 0 ? p.c_row : 0});
        }
    }
  }
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(product_scratch);
int64_t product_scratch(int64_t depth, int64_t columns) {
  return HWY_DYNAMIC_DISPATCH(product_scratch)(depth, columns);
}
HWY_EXPORT(product);
void product(const Product& p, float* panels) {
  HWY_DYNAMIC_DISPATCH(product)(p, panels);
}

}  // namespace nns::ops
#endif
