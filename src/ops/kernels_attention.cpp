// Attention of one head, a block of queries at a time: scores of the block against all keys it
// sees, softmax, dropout, product with the values. The derivative computes the scores again. A
// causal block does only the tiles on and below the diagonal.
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention_head.h"
#include "ops/words.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels_attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/tile_product.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

constexpr int64_t kBlock = 24;  // queries: four tiles
constexpr int64_t kSlack = 16;  // floats behind a row of scores: zeros that a tile may read

// Where scores of a block lie. A row holds `row` floats, of which keys [0, seen) count.
struct Scores {
  const HeadShape& shape;
  int64_t first, rows, row;

  int64_t seen(int64_t i) const {
    return shape.causal ? std::min(shape.keys, first + i + 1) : shape.keys;
  }
};

int64_t score_stride(int64_t keys) {
  return row_stride(whole_tiles(keys) + kSlack);
}

// to[i] = factor · from[i].
HWY_INLINE void copy_scaled(const float* from, float* to, int64_t count, float factor) {
  const V by = set(factor);
  for (int64_t i = 0; i < count; i += kLanes)
    store(hn::Mul(by, load(from + i, count - i)), to + i, count - i);
}

// Copies rows to scratch, padded with zeros to whole tiles.
HWY_INLINE void pack_rows(Rows<const float> from, int64_t rows, int64_t width, float factor,
                          float* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    copy_scaled(from.data + i * from.row, to + i * stride, width, factor);
    std::fill(to + i * stride + width, to + i * stride + whole_tiles(width), 0.0f);
  }
}

// to[j * kTileColumns + i] = from[i * row + j] for a patch of so many rows and columns.
constexpr int64_t kPatch = HWY_TARGET == HWY_SCALAR ? 1 : 4;
HWY_INLINE void transpose_patch(const float* from, [[maybe_unused]] int64_t row, float* to) {
#if HWY_TARGET == HWY_SCALAR
  *to = *from;
#else
  constexpr hn::CappedTag<float, 4> four;
  constexpr hn::RepartitionToWide<decltype(four)> two;
  const auto a = hn::LoadU(four, from), b = hn::LoadU(four, from + row);
  const auto c = hn::LoadU(four, from + 2 * row), d = hn::LoadU(four, from + 3 * row);
  const auto low_ab = hn::BitCast(two, hn::InterleaveLower(four, a, b));
  const auto low_cd = hn::BitCast(two, hn::InterleaveLower(four, c, d));
  const auto high_ab = hn::BitCast(two, hn::InterleaveUpper(four, a, b));
  const auto high_cd = hn::BitCast(two, hn::InterleaveUpper(four, c, d));
  const auto put = [&](auto x, int64_t j)
                       HWY_ATTR { hn::StoreU(hn::BitCast(four, x), four, to + j * kTileColumns); };
  put(hn::InterleaveLower(two, low_ab, low_cd), 0);
  put(hn::InterleaveUpper(two, low_ab, low_cd), 1);
  put(hn::InterleaveLower(two, high_ab, high_cd), 2);
  put(hn::InterleaveUpper(two, high_ab, high_cd), 3);
#endif
}

// Copies the transpose to scratch: for each tile's columns of rows a panel [width, columns],
// zeros for missing rows.
HWY_INLINE void pack_transposed(Rows<const float> from, int64_t rows, int64_t width, float* to) {
  for (int64_t first = 0; first < rows; first += kTileColumns, to += width * kTileColumns) {
    const int64_t count = std::min(kTileColumns, rows - first);
    const float* top = from.data + first * from.row;
    int64_t done = 0;  // columns
    if (count == kTileColumns) {
      for (; done + kPatch <= width; done += kPatch)
        for (int64_t j = 0; j < kTileColumns; j += kPatch)
          transpose_patch(top + j * from.row + done, from.row, to + done * kTileColumns + j);
    } else {
      std::fill(to, to + width * kTileColumns, 0.0f);
    }
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = done; d < width; ++d) to[d * kTileColumns + j] = top[j * from.row + d];
  }
}

// scores = a times the transposed matrix in panels, for the tiles that some query of theirs sees.
HWY_INLINE void score_tiles(const Scores& s, Left a, const float* panels, float* scores) {
  const int64_t width = s.shape.width;
  for (int64_t j = 0; j < s.seen(s.rows - 1); j += kTileColumns) {
    const Right b{panels + j * width, kTileColumns};
    for (int64_t i = 0; i < s.rows; i += kTileRows) {
      const int64_t rows = std::min(kTileRows, s.rows - i);
      const int64_t left = s.seen(i + rows - 1) - j;
      if (left <= 0) continue;
      tile_of<false>(rows, left, {a.data + i * a.row, a.row, a.column}, b,
                     {scores + i * s.row + j, s.row}, width);
    }
  }
}

// out [rows, width] = weights (scores of this block) times b [keys, width].
HWY_INLINE void times_keys(const Scores& s, const float* weights, Right b, Result out) {
  for (int64_t d = 0; d < s.shape.width; d += kTileColumns)
    for (int64_t i = 0; i < s.rows; i += kTileRows) {
      const int64_t rows = std::min(kTileRows, s.rows - i);
      tile_of<false>(rows, s.shape.width - d, {weights + i * s.row, s.row, 1}, {b.data + d, b.row},
                     {out.data + i * out.row + d, out.row}, s.seen(i + rows - 1));
    }
}

// out [keys, width] += transposed weights times b [rows, width].
HWY_INLINE void add_transposed_times(const Scores& s, const float* weights, Right b, Result out) {
  const int64_t keys = s.seen(s.rows - 1);
  for (int64_t d = 0; d < s.shape.width; d += kTileColumns)
    for (int64_t j = 0; j < keys; j += kTileRows) {
      const int64_t skip = s.shape.causal ? std::max<int64_t>(0, j - s.first) : 0;
      tile_of<true>(std::min(kTileRows, keys - j), s.shape.width - d,
                    {weights + skip * s.row + j, 1, s.row}, {b.data + skip * b.row + d, b.row},
                    {out.data + j * out.row + d, out.row}, s.rows - skip);
    }
}

// Zeros behind the keys that a row sees, as far as tiles read.
HWY_INLINE void clear_behind(float* row, int64_t seen) {
  for (int64_t j = 0; j < kTileRows; j += kLanes) store(hn::Zero(kFloats), row + seen + j);
}

// The first `count` lanes of memory that goes on behind them; `other` in the rest.
HWY_INLINE V load_else(const float* from, int64_t count, V other) {
  if (HWY_LIKELY(count >= kLanes)) return load(from);
  return hn::IfThenElse(hn::FirstN(kFloats, static_cast<size_t>(count)), load(from), other);
}

// Turns a row of scores into exp(score - largest). Returns largest and the sum.
HWY_INLINE std::pair<float, float> exp_row(float* row, int64_t count) {
  const V lowest = set(-std::numeric_limits<float>::infinity());
  V high = lowest, sum = hn::Zero(kFloats);
  for (int64_t j = 0; j < count; j += kLanes)
    high = hn::Max(high, load_else(row + j, count - j, lowest));
  const float largest = hn::GetLane(hn::MaxOfLanes(kFloats, high));
  const V shift = set(largest);
  for (int64_t j = 0; j < count; j += kLanes) {
    const V e = first(exp(hn::Sub(load_else(row + j, count - j, shift), shift)), count - j);
    store(e, row + j);
    sum = hn::Add(sum, e);
  }
  clear_behind(row, count);
  return {largest, sum_lanes(sum)};
}

// Turns a row of scores into weights exp(score - logsumexp), and the gradient of the weights into
// that of the scores.
HWY_INLINE void weight_row(float* row, float* gradient, int64_t count, float logsumexp,
                           float delta) {
  const V shift = set(logsumexp), less = set(delta);
  for (int64_t j = 0; j < count; j += kLanes) {
    const int64_t left = count - j;
    const V p = first(exp(hn::Sub(load_else(row + j, left, shift), shift)), left);
    const V d = first(hn::Sub(load(gradient + j), less), left);
    store(p, row + j);
    store(hn::Mul(p, d), gradient + j);
  }
  clear_behind(row, count);
  clear_behind(gradient, count);
}

// x where the draw is kept, else zero.
HWY_INLINE V kept(V x, const uint32_t* words, uint32_t limit) {
  constexpr hn::RebindToUnsigned<decltype(kFloats)> integers;
  const auto w = hn::LoadU(integers, words), least = hn::Set(integers, limit);
  return hn::IfThenElseZero(hn::RebindMask(kFloats, hn::Eq(hn::Max(w, least), w)), x);
}

// Draws for query `i` of a head and the keys [0, count); `words` has room for whole lanes.
void draw_row(const HeadDrops& drops, int64_t i, int64_t count, uint32_t* words) {
  draw_words(drops.stream, drops.first + static_cast<uint64_t>(i) * drops.row, count, words);
}

// Zeros in place of the weights that are dropped.
HWY_INLINE void drop_row(float* row, int64_t count, const uint32_t* words, uint32_t limit) {
  for (int64_t j = 0; j < count; j += kLanes)  // zeros lie behind the last
    store(kept(load(row + j), words + j, limit), row + j);
}

// weight_row under dropout: the row becomes the weights that are kept, times the factor, and the
// gradient of these becomes that of the scores.
HWY_INLINE void dropped_weight_row(float* row, float* gradient, int64_t count, float logsumexp,
                                   float delta, const uint32_t* words, const HeadDrops& drops) {
  const V shift = set(logsumexp), less = set(delta), factor = set(drops.factor);
  for (int64_t j = 0; j < count; j += kLanes) {
    const int64_t left = count - j;
    const V by = kept(factor, words + j, drops.limit);
    const V p = first(exp(hn::Sub(load_else(row + j, left, shift), shift)), left);
    const V g = first(load(gradient + j), left);
    store(hn::Mul(p, by), row + j);
    store(hn::Mul(p, hn::MulSub(by, g, less)), gradient + j);
  }
  clear_behind(row, count);
  clear_behind(gradient, count);
}

HWY_INLINE float dot(const float* a, const float* b, int64_t count) {
  V sum = hn::Zero(kFloats);
  for (int64_t i = 0; i < count; i += kLanes)
    sum = hn::MulAdd(load(a + i, count - i), load(b + i, count - i), sum);
  return sum_lanes(sum);
}

template <class T>
Rows<T> from_row(Rows<T> m, int64_t i) {
  return {m.data + i * m.row, m.row};
}

void attend(const HeadShape& shape, Rows<const float> q, Rows<const float> k, Rows<const float> v,
            Rows<float> output, float* logsumexp, const HeadDrops* drops) {
  const int64_t keys = shape.keys, width = shape.width, ld = row_stride(width);
  const int64_t row = score_stride(keys);
  Scratch scratch(whole_tiles(keys) * width + keys * ld + kBlock * (2 * ld + row));
  std::vector<uint32_t> words(drops != nullptr ? static_cast<size_t>(keys + kLanes) : 0);
  float* kt = scratch.take(whole_tiles(keys) * width);
  float* values = scratch.take(keys * ld);
  float* queries = scratch.take(kBlock * ld);
  float* result = scratch.take(kBlock * ld);
  float* scores = scratch.take(kBlock * row);
  pack_transposed(k, keys, width, kt);
  pack_rows(v, keys, width, 1.0f, values, ld);
  for (int64_t first = 0; first < shape.queries; first += kBlock) {
    const Scores s{shape, first, std::min(kBlock, shape.queries - first), row};
    pack_rows(from_row(q, first), s.rows, width, shape.scale, queries, ld);
    score_tiles(s, {queries, ld, 1}, kt, scores);
    float sums[kBlock];
    for (int64_t i = 0; i < s.rows; ++i) {
      const auto [largest, sum] = exp_row(scores + i * row, s.seen(i));
      logsumexp[first + i] = largest + std::log(sum);
      sums[i] = sum;
      if (drops == nullptr) continue;
      sums[i] /= drops->factor;
      draw_row(*drops, first + i, s.seen(i), words.data());
      drop_row(scores + i * row, s.seen(i), words.data(), drops->limit);
    }
    times_keys(s, scores, {values, ld}, {result, ld});
    for (int64_t i = 0; i < s.rows; ++i)
      copy_scaled(result + i * ld, output.data + (first + i) * output.row, width, 1.0f / sums[i]);
  }
}

void attend_backward(const HeadShape& shape, Rows<const float> gradient, Rows<const float> q,
                     Rows<const float> k, Rows<const float> v, Rows<const float> output,
                     const float* logsumexp, const HeadGradients& gradients,
                     const HeadDrops* drops) {
  const int64_t keys = shape.keys, width = shape.width, ld = row_stride(width);
  const int64_t row = score_stride(keys), panels = whole_tiles(keys) * width;
  Scratch scratch(2 * panels + 3 * keys * ld + kBlock * (3 * ld + 2 * row));
  float *kt = scratch.take(panels), *vt = scratch.take(panels);
  float* scaled_keys = scratch.take(keys * ld);
  float *dk = scratch.take(keys * ld), *dv = scratch.take(keys * ld);
  float *queries = scratch.take(kBlock * ld), *g = scratch.take(kBlock * ld);
  float* dq = scratch.take(kBlock * ld);
  float *weights = scratch.take(kBlock * row), *dscores = scratch.take(kBlock * row);
  pack_transposed(k, keys, width, kt);
  pack_transposed(v, keys, width, vt);
  pack_rows(k, keys, width, shape.scale, scaled_keys, ld);
  std::vector<uint32_t> words(drops != nullptr ? static_cast<size_t>(keys + kLanes) : 0);
  std::fill(dk, dk + keys * ld, 0.0f);
  std::fill(dv, dv + keys * ld, 0.0f);
  for (int64_t first = 0; first < shape.queries; first += kBlock) {
    const Scores s{shape, first, std::min(kBlock, shape.queries - first), row};
    pack_rows(from_row(q, first), s.rows, width, shape.scale, queries, ld);
    pack_rows(from_row(gradient, first), s.rows, width, 1.0f, g, ld);
    score_tiles(s, {queries, ld, 1}, kt, weights);
    score_tiles(s, {g, ld, 1}, vt, dscores);
    for (int64_t i = 0; i < s.rows; ++i) {
      const float delta = dot(g + i * ld, output.data + (first + i) * output.row, width);
      float *weight = weights + i * row, *dscore = dscores + i * row;
      if (drops == nullptr) {
        weight_row(weight, dscore, s.seen(i), logsumexp[first + i], delta);
        continue;
      }
      draw_row(*drops, first + i, s.seen(i), words.data());
      dropped_weight_row(weight, dscore, s.seen(i), logsumexp[first + i], delta, words.data(),
                         *drops);
    }
    add_transposed_times(s, weights, {g, ld}, {dv, ld});
    add_transposed_times(s, dscores, {queries, ld}, {dk, ld});
    times_keys(s, dscores, {scaled_keys, ld}, {dq, ld});
    for (int64_t i = 0; i < s.rows; ++i)
      copy_scaled(dq + i * ld, gradients.q.data + (first + i) * gradients.q.row, width, 1.0f);
  }
  for (int64_t j = 0; j < keys; ++j) {
    copy_scaled(dk + j * ld, gradients.k.data + j * gradients.k.row, width, 1.0f);
    copy_scaled(dv + j * ld, gradients.v.data + j * gradients.v.row, width, 1.0f);
  }
}

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(attend);
void attend_head(const HeadShape& shape, Rows<const float> q, Rows<const float> k,
                 Rows<const float> v, Rows<float> output, float* logsumexp,
                 const HeadDrops* drops) {
  HWY_DYNAMIC_DISPATCH(attend)(shape, q, k, v, output, logsumexp, drops);
}
HWY_EXPORT(attend_backward);
void attend_head_backward(const HeadShape& shape, Rows<const float> gradient, Rows<const float> q,
                          Rows<const float> k, Rows<const float> v, Rows<const float> output,
                          const float* logsumexp, const HeadGradients& gradients,
                          const HeadDrops* drops) {
  HWY_DYNAMIC_DISPATCH(attend_backward)
  (shape, gradient, q, k, v, output, logsumexp, gradients, drops);
}

}  // namespace nns::ops
#endif
