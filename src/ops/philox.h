// Random numbers without hidden state. Every draw is a function of a key (purpose and path), the
// run seed, the step, the micro-batch and the index of the element in the unsplit tensor, so a rank
// draws its slice of the one-device tensor bit for bit, in any chunking and on any thread count.
// The generator is Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
// No LibTorch here.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/types.h"

namespace nns::ops {

using Block = std::array<uint32_t, 4>;

inline constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
inline constexpr int kRounds = 10;

constexpr Block philox(Block counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t p1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// A sequence of independent draws. Counters are (block low, block high, step, micro).
struct Stream {
  uint32_t key0 = 0, key1 = 0, step = 0, micro = 0;

  constexpr Block block(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), step, micro},
                  key0, key1);
  }
};

// Returns the stream of a purpose: "transformer.h.0.attn:dropout#0", a parameter's path, "data".
// `step` and `micro` must be below 2^32 (callers check).
inline Stream make_stream(std::string_view key, uint64_t seed, uint64_t step = 0,
                          uint64_t micro = 0) {
  uint64_t h = hash_bytes(key, seed * 0x9E3779B97F4A7C15ull + 0xcbf29ce484222325ull);
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;  // FNV leaves the high bits badly mixed
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  h ^= h >> 31;
  return {static_cast<uint32_t>(h), static_cast<uint32_t>(h >> 32), static_cast<uint32_t>(step),
          static_cast<uint32_t>(micro)};
}

// --- 32-bit draws, for masks
// ----------------------------------------------------------------------

// A tile of 64 elements shares 16 blocks; word w of block b belongs to element 16 w + b. So the
// words of a tile come out of vector registers in the order of the elements, whatever the vector
// width.
inline constexpr int64_t kTile = 64, kTileBlocks = 16;

inline uint32_t word(const Stream& s, uint64_t element) {
  return s.block(element / kTile * kTileBlocks +
                 element % kTileBlocks)[element % kTile / kTileBlocks];
}

// --- 64-bit draws
// ---------------------------------------------------------------------------------

inline uint64_t word64(const Stream& s, uint64_t element) {
  const Block b = s.block(element / 2);
  const size_t at = element % 2 * 2;
  return uint64_t{b[at]} << 32 | b[at + 1];
}

// In [0, 1), 53 bits.
inline double uniform(const Stream& s, uint64_t element) {
  return static_cast<double>(word64(s, element) >> 11) * 0x1p-53;
}

// Standard normal values of elements 2 pair and 2 pair + 1 (Box–Muller of their uniforms).
inline std::array<double, 2> normal_pair(const Stream& s, uint64_t pair) {
  const Block b = s.block(pair);
  const auto unit = [](uint32_t high, uint32_t low) {
    return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(b[0], b[1])));
  const double angle = 2.0 * 3.14159265358979323846 * unit(b[2], b[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}
inline double normal(const Stream& s, uint64_t element) {
  return normal_pair(s, element / 2)[element % 2];
}

// The inverse of the normal distribution function, for 0 < q < 1: a rational first guess, then
// Halley's method on erfc.
inline double normal_quantile(double q) {
  const double tail = q < 0.5 ? q : 1.0 - q;
  const double t = std::sqrt(-2.0 * std::log(tail));
  double z = -(t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                       (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
  for (int i = 0; i < 3; ++i) {
    const double error = 0.5 * std::erfc(-z * 0.70710678118654752440) - tail;
    const double step = error * 2.50662827463100050242 * std::exp(0.5 * z * z);
    z -= step / (1.0 + 0.5 * z * step);
  }
  return q < 0.5 ? z : -z;
}

// In [0, bound); the bias is below bound / 2^64.
inline uint64_t below(const Stream& s, uint64_t element, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word64(s, element)) * bound) >> 64);
}

// Returns where `index` goes in a random permutation of [0, size), without storing the permutation:
// a Feistel network on the next even number of bits, walked until it lands below `size`.
inline uint64_t permute(const Stream& s, uint64_t index, uint64_t size) {
  int half = 1;
  while (half < 32 && (uint64_t{1} << (2 * half)) < size) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint32_t round = 0; round < 6; ++round) {
      const Block b = philox({static_cast<uint32_t>(right), round | 0x80000000u, s.step, s.micro},
                             s.key0, s.key1);
      const uint64_t next = left ^ (b[0] & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= size);
  return index;
}

}  // namespace nns::ops
