// Attention of one head, a block of queries at a time: scores of the block against all keys it
// sees, softmax, dropout, product with the values. The derivative computes the scores again. A
// causal block does only the tiles on and below the diagonal.
#include "ops/attention_avx2.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/tile_product.h"
#include "ops/words.h"

#if defined(__x86_64__)
namespace nns::ops {
namespace {

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
NNS_AVX2_INLINE void copy_scaled(const float* from, float* to, int64_t count, float factor) {
  const __m256 by = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_ps(to + i, _mm256_mul_ps(by, _mm256_loadu_ps(from + i)));
  if (i == count) return;
  const __m256i mask = first_lanes(count - i);
  _mm256_maskstore_ps(to + i, mask, _mm256_mul_ps(by, _mm256_maskload_ps(from + i, mask)));
}

// Copies rows to scratch, padded with zeros to whole tiles.
NNS_AVX2_INLINE void pack_rows(Rows<const float> from, int64_t rows, int64_t width, float factor,
                               float* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    copy_scaled(from.data + i * from.row, to + i * stride, width, factor);
    std::fill(to + i * stride + width, to + i * stride + whole_tiles(width), 0.0f);
  }
}

// to[j * 16 + i] = from[i * row + j] for eight by eight.
NNS_AVX2_INLINE void transpose8(const float* from, int64_t row, float* to) {
  __m256 x[8], y[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) x[i] = _mm256_loadu_ps(from + i * row);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
    x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xEE);
    x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
    x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * kTileColumns, _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * kTileColumns, _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
  }
}

// Copies the transpose to scratch: for each 16 rows a panel [width, 16], zeros for missing rows.
NNS_AVX2_INLINE void pack_transposed(Rows<const float> from, int64_t rows, int64_t width,
                                     float* to) {
  for (int64_t first = 0; first < rows; first += kTileColumns, to += width * kTileColumns) {
    const int64_t count = std::min(kTileColumns, rows - first);
    const float* top = from.data + first * from.row;
    int64_t done = 0;  // columns
    if (count == kTileColumns) {
      for (; done + 8 <= width; done += 8) {
        transpose8(top + done, from.row, to + done * kTileColumns);
        transpose8(top + 8 * from.row + done, from.row, to + done * kTileColumns + 8);
      }
    } else {
      std::fill(to, to + width * kTileColumns, 0.0f);
    }
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = done; d < width; ++d) to[d * kTileColumns + j] = top[j * from.row + d];
  }
}

NNS_AVX2_INLINE float sum_lanes(__m256 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
NNS_AVX2_INLINE float largest_lane(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// scores = a times the transposed matrix in panels, for the tiles that some query of theirs sees.
NNS_AVX2_INLINE void score_tiles(const Scores& s, Left a, const float* panels, float* scores) {
  const int64_t width = s.shape.width;
  for (int64_t j = 0; j < s.seen(s.rows - 1); j += kTileColumns) {
    const Right b{panels + j * width, kTileColumns};
    for (int64_t i = 0; i < s.rows; i += kTileRows) {
      const int64_t rows = std::min(kTileRows, s.rows - i);
      if (j >= s.seen(i + rows - 1)) continue;
      tile_of<false>(rows, {a.data + i * a.row, a.row, a.column}, b,
                     {scores + i * s.row + j, s.row}, width);
    }
  }
}

// out [rows, width] = weights (scores of this block) times b [keys, width].
NNS_AVX2_INLINE void times_keys(const Scores& s, const float* weights, Right b, Result out) {
  for (int64_t d = 0; d < s.shape.width; d += kTileColumns)
    for (int64_t i = 0; i < s.rows; i += kTileRows) {
      const int64_t rows = std::min(kTileRows, s.rows - i);
      tile_of<false>(rows, {weights + i * s.row, s.row, 1}, {b.data + d, b.row},
                     {out.data + i * out.row + d, out.row}, s.seen(i + rows - 1));
    }
}

// out [keys, width] += transposed weights times b [rows, width].
NNS_AVX2_INLINE void add_transposed_times(const Scores& s, const float* weights, Right b,
                                          Result out) {
  const int64_t keys = s.seen(s.rows - 1);
  for (int64_t d = 0; d < s.shape.width; d += kTileColumns)
    for (int64_t j = 0; j < keys; j += kTileRows) {
      const int64_t skip = s.shape.causal ? std::max<int64_t>(0, j - s.first) : 0;
      tile_of<true>(std::min(kTileRows, keys - j), {weights + skip * s.row + j, 1, s.row},
                    {b.data + skip * b.row + d, b.row}, {out.data + j * out.row + d, out.row},
                    s.rows - skip);
    }
}

// Zeros behind the keys that a row sees, as far as tiles read.
NNS_AVX2_INLINE void clear_behind(float* row, int64_t seen) {
  _mm256_storeu_ps(row + seen, _mm256_setzero_ps());
}

// Turns a row of scores into exp(score - largest). Returns largest and the sum.
NNS_AVX2_INLINE std::pair<float, float> exp_row(float* row, int64_t count) {
  __m256 high = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  const __m256 lowest = high;
  const int64_t whole = count / kLanes * kLanes;
  const __m256 mask = _mm256_castsi256_ps(first_lanes(count - whole));
  for (int64_t j = 0; j < whole; j += kLanes) high = _mm256_max_ps(high, _mm256_loadu_ps(row + j));
  if (whole < count)
    high = _mm256_max_ps(high, _mm256_blendv_ps(lowest, _mm256_loadu_ps(row + whole), mask));
  const float largest = largest_lane(high);
  const __m256 shift = _mm256_set1_ps(largest);
  __m256 sum = _mm256_setzero_ps();
  for (int64_t j = 0; j < whole; j += kLanes) {
    const __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(row + j), shift));
    _mm256_storeu_ps(row + j, e);
    sum = _mm256_add_ps(sum, e);
  }
  if (whole < count) {
    const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(row + whole), shift);
    const __m256 e = _mm256_and_ps(mask, exp8(_mm256_blendv_ps(lowest, x, mask)));
    _mm256_storeu_ps(row + whole, e);
    sum = _mm256_add_ps(sum, e);
  }
  clear_behind(row, count);
  return {largest, sum_lanes(sum)};
}

// Turns a row of scores into weights exp(score - logsumexp), and the gradient of the weights into
// that of the scores.
NNS_AVX2_INLINE void weight_row(float* row, float* gradient, int64_t count, float logsumexp,
                                float delta) {
  const __m256 shift = _mm256_set1_ps(logsumexp), less = _mm256_set1_ps(delta);
  for (int64_t j = 0; j < count; j += kLanes) {
    const __m256 mask = _mm256_castsi256_ps(first_lanes(std::min(kLanes, count - j)));
    const __m256 x = _mm256_and_ps(mask, _mm256_sub_ps(_mm256_loadu_ps(row + j), shift));
    const __m256 p = _mm256_and_ps(mask, exp8(x));
    const __m256 d = _mm256_and_ps(mask, _mm256_sub_ps(_mm256_loadu_ps(gradient + j), less));
    _mm256_storeu_ps(row + j, p);
    _mm256_storeu_ps(gradient + j, _mm256_mul_ps(p, d));
  }
  clear_behind(row, count);
  clear_behind(gradient, count);
}

// All bits of the lanes whose draw is kept.
NNS_AVX2_INLINE __m256 kept8(const uint32_t* words, __m256i limit) {
  const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(w, limit), w));
}

// Draws for query `i` of a head and the keys [0, count); `words` has room for whole lanes.
void draw_row(const HeadDrops& drops, int64_t i, int64_t count, uint32_t* words) {
  draw_words(drops.stream, drops.first + static_cast<uint64_t>(i) * drops.row, count, words);
}

// Zeros in place of the weights that are dropped.
NNS_AVX2_INLINE void drop_row(float* row, int64_t count, const uint32_t* words, uint32_t limit) {
  const __m256i least = _mm256_set1_epi32(static_cast<int>(limit));
  for (int64_t j = 0; j < count; j += kLanes)  // zeros lie behind the last
    _mm256_storeu_ps(row + j, _mm256_and_ps(kept8(words + j, least), _mm256_loadu_ps(row + j)));
}

// weight_row under dropout: the row becomes the weights that are kept, times the factor, and the
// gradient of these becomes that of the scores.
NNS_AVX2_INLINE void dropped_weight_row(float* row, float* gradient, int64_t count, float logsumexp,
                                        float delta, const uint32_t* words,
                                        const HeadDrops& drops) {
  const __m256 shift = _mm256_set1_ps(logsumexp), less = _mm256_set1_ps(delta);
  const __m256 factor = _mm256_set1_ps(drops.factor);
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(drops.limit));
  for (int64_t j = 0; j < count; j += kLanes) {
    const __m256 mask = _mm256_castsi256_ps(first_lanes(std::min(kLanes, count - j)));
    const __m256 by = _mm256_and_ps(kept8(words + j, limit), factor);
    const __m256 x = _mm256_and_ps(mask, _mm256_sub_ps(_mm256_loadu_ps(row + j), shift));
    const __m256 p = _mm256_and_ps(mask, exp8(x));
    const __m256 g = _mm256_and_ps(mask, _mm256_loadu_ps(gradient + j));
    _mm256_storeu_ps(row + j, _mm256_mul_ps(p, by));
    _mm256_storeu_ps(gradient + j, _mm256_mul_ps(p, _mm256_fmsub_ps(by, g, less)));
  }
  clear_behind(row, count);
  clear_behind(gradient, count);
}

NNS_AVX2_INLINE float dot(const float* a, const float* b, int64_t count) {
  __m256 sum = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
  if (i < count) {
    const __m256i mask = first_lanes(count - i);
    sum = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask), sum);
  }
  return sum_lanes(sum);
}

template <class T>
Rows<T> from_row(Rows<T> m, int64_t i) {
  return {m.data + i * m.row, m.row};
}

}  // namespace

NNS_AVX2 void attend_head(const HeadShape& shape, Rows<const float> q, Rows<const float> k,
                          Rows<const float> v, Rows<float> output, float* logsumexp,
                          const HeadDrops* drops) {
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

NNS_AVX2 void attend_head_backward(const HeadShape& shape, Rows<const float> gradient,
                                   Rows<const float> q, Rows<const float> k, Rows<const float> v,
                                   Rows<const float> output, const float* logsumexp,
                                   const HeadGradients& gradients, const HeadDrops* drops) {
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

}  // namespace nns::ops
#endif
