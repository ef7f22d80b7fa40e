#include "ops/words.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/words.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace nns::ops::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void draw_tile(const Stream& s, uint64_t tile, uint32_t* out) {
  for (uint64_t b = 0; b < kTileBlocks; ++b) {
    const Block words = s.block(tile * kTileBlocks + b);
    for (uint64_t w = 0; w < 4; ++w) out[w * kTileBlocks + b] = words[w];
  }
}
#else
// One 64-bit lane a block: even blocks in one register, odd blocks in another. The upper halves of
// lanes hold rubbish that multiplication ignores and the last blend drops.
void draw_tile(const Stream& s, uint64_t tile, uint32_t* out) {
  constexpr hn::ScalableTag<uint64_t> wide;
  constexpr hn::ScalableTag<uint32_t> narrow;
  using Wide = hn::Vec<decltype(wide)>;
  constexpr uint64_t kBlocks = hn::MaxLanes(narrow);
  const auto times = [&](Wide x, uint32_t y) HWY_ATTR {
    return hn::MulEven(hn::BitCast(narrow, x), hn::Set(narrow, y));
  };
  for (uint64_t first = 0; first < kTileBlocks; first += kBlocks) {
    Wide c0[2], c1[2], c2[2], c3[2];
    const Wide even = hn::Iota(wide, 0);
    for (uint64_t odd = 0; odd < 2; ++odd) {
      c0[odd] = hn::Add(hn::Add(even, even), hn::Set(wide, tile * kTileBlocks + first + odd));
      c1[odd] = hn::ShiftRight<32>(c0[odd]);
      c2[odd] = hn::Set(wide, s.step);
      c3[odd] = hn::Set(wide, s.micro);
    }
    uint32_t key0 = s.key0, key1 = s.key1;
    for (int round = 0; round < kRounds; ++round) {
      const Wide k0 = hn::Set(wide, key0), k1 = hn::Set(wide, key1);
      for (int odd = 0; odd < 2; ++odd) {
        const Wide p0 = times(c0[odd], kMultiplier0), p1 = times(c2[odd], kMultiplier1);
        c0[odd] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1[odd]), k0);
        c2[odd] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3[odd]), k1);
        c1[odd] = p1;
        c3[odd] = p0;
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const auto put = [&](const Wide* c, uint64_t word) HWY_ATTR {
      const auto high = hn::BitCast(narrow, hn::ShiftLeft<32>(c[1]));
      hn::StoreU(hn::OddEven(high, hn::BitCast(narrow, c[0])), narrow,
                 out + word * kTileBlocks + first);
    };
    put(c0, 0);
    put(c1, 1);
    put(c2, 2);
    put(c3, 3);
  }
}
#endif

}  // namespace nns::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nns::ops {

HWY_EXPORT(draw_tile);

void draw_words(const Stream& s, uint64_t first, int64_t count, uint32_t* out) {
  while (count > 0) {
    const uint64_t tile = first / kTile;
    const auto skip = static_cast<int64_t>(first % kTile);
    const int64_t n = std::min(kTile - skip, count);
    if (n == kTile) {
      HWY_DYNAMIC_DISPATCH(draw_tile)(s, tile, out);
    } else if (n < kTile / 8) {
      for (int64_t i = 0; i < n; ++i) out[i] = word(s, first + static_cast<uint64_t>(i));
    } else {
      uint32_t words[kTile];
      HWY_DYNAMIC_DISPATCH(draw_tile)(s, tile, words);
      std::memcpy(out, words + skip, static_cast<size_t>(n) * sizeof(uint32_t));
    }
    first += static_cast<uint64_t>(n);
    out += n;
    count -= n;
  }
}

}  // namespace nns::ops
#endif
