#include "ops/words.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nns::ops {
namespace {

void tile_scalar(const Stream& s, uint64_t tile, uint32_t* out) {
  for (uint64_t b = 0; b < kTileBlocks; ++b) {
    const Block words = s.block(tile * kTileBlocks + b);
    for (uint64_t w = 0; w < 4; ++w) out[w * kTileBlocks + b] = words[w];
  }
}

#if defined(__x86_64__)
// Eight blocks a pass, one 64-bit lane a block: even blocks in one register, odd blocks in another.
// The upper halves of lanes hold rubbish that multiplication ignores and the last blend drops.
__attribute__((target("avx2"))) void tile_avx2(const Stream& s, uint64_t tile, uint32_t* out) {
  const __m256i m0 = _mm256_set1_epi64x(kMultiplier0), m1 = _mm256_set1_epi64x(kMultiplier1);
  for (uint64_t half = 0; half < 2; ++half) {
    const uint64_t base = tile * kTileBlocks + half * 8;
    __m256i c0[2], c1[2], c2[2], c3[2];
    for (int odd = 0; odd < 2; ++odd) {
      c0[odd] = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(base)),
                                 _mm256_set_epi64x(6 + odd, 4 + odd, 2 + odd, odd));
      c1[odd] = _mm256_srli_epi64(c0[odd], 32);
      c2[odd] = _mm256_set1_epi64x(s.step);
      c3[odd] = _mm256_set1_epi64x(s.micro);
    }
    uint32_t key0 = s.key0, key1 = s.key1;
    for (int round = 0; round < kRounds; ++round) {
      const __m256i k0 = _mm256_set1_epi64x(key0), k1 = _mm256_set1_epi64x(key1);
      for (int odd = 0; odd < 2; ++odd) {
        const __m256i p0 = _mm256_mul_epu32(c0[odd], m0), p1 = _mm256_mul_epu32(c2[odd], m1);
        c0[odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[odd]), k0);
        c2[odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[odd]), k1);
        c1[odd] = p1;
        c3[odd] = p0;
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const auto store = [&](const __m256i* c, int w) __attribute__((target("avx2"))) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + w * kTileBlocks + half * 8),
                          _mm256_blend_epi32(c[0], _mm256_slli_epi64(c[1], 32), 0xAA));
    };
    store(c0, 0);
    store(c1, 1);
    store(c2, 2);
    store(c3, 3);
  }
}
#endif

using Tile = void (*)(const Stream&, uint64_t, uint32_t*);

Tile best_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return tile_avx2;
#endif
  return tile_scalar;
}

}  // namespace

void draw_words(const Stream& s, uint64_t first, int64_t count, uint32_t* out) {
  static const Tile draw_tile = best_tile();
  while (count > 0) {
    const uint64_t tile = first / kTile;
    const auto skip = static_cast<int64_t>(first % kTile);
    const int64_t n = std::min(kTile - skip, count);
    if (n == kTile) {
      draw_tile(s, tile, out);
    } else if (n < kTile / 8) {
      for (int64_t i = 0; i < n; ++i) out[i] = word(s, first + static_cast<uint64_t>(i));
    } else {
      uint32_t words[kTile];
      draw_tile(s, tile, words);
      std::memcpy(out, words + skip, static_cast<size_t>(n) * sizeof(uint32_t));
    }
    first += static_cast<uint64_t>(n);
    out += n;
    count -= n;
  }
}

}  // namespace nns::ops
