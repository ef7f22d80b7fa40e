// Eight floats at a time, for kernels of ours on processors with AVX2 and FMA: exp and the loading
// of the last few. Only functions with the same target may call them, after have_avx2().
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define NNS_AVX2 __attribute__((target("avx2,fma")))
#define NNS_AVX2_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

namespace nns::ops {

inline bool have_avx2() {
  static const bool have = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return have;
}

constexpr int64_t kLanes = 8;

// A mask of the first `count` lanes, 0 <= count <= 8.
NNS_AVX2_INLINE __m256i first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// exp(k ln 2 + r) for whole k from -125 to 127 and |r| <= ln(2)/2, to 1e-7 relative.
NNS_AVX2_INLINE __m256 exp_parts8(__m256 k, __m256 r) {
  // (exp(r) - 1 - r) / r², least relative error of exp(r).
  const __m256 square = _mm256_mul_ps(r, r);
  const __m256 low =
      _mm256_fmadd_ps(_mm256_set1_ps(1.666651964e-01f), r, _mm256_set1_ps(4.999999404e-01f));
  __m256 high =
      _mm256_fmadd_ps(_mm256_set1_ps(1.381446724e-03f), r, _mm256_set1_ps(8.368780836e-03f));
  high = _mm256_fmadd_ps(high, r, _mm256_set1_ps(4.166839272e-02f));
  const __m256 p = _mm256_fmadd_ps(high, square, low);
  const __m256 power = _mm256_add_ps(_mm256_fmadd_ps(square, p, r), _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(k), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(power), exponent));
}

// x - k ln 2, exactly but for the last bit.
NNS_AVX2_INLINE __m256 less_powers8(__m256 x, __m256 k) {
  const __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693145752f), x);  // its first 16 bits
  return _mm256_fnmadd_ps(k, _mm256_set1_ps(1.42860677e-6f), r);
}

// exp(x) to 1e-7 relative; zero below -87, NaN for NaN. x must not exceed 88.
NNS_AVX2_INLINE __m256 exp8(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.0f);
  const __m256 alive = _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ);
  const __m256 at = _mm256_max_ps(lowest, x);  // of a NaN the second operand, x
  const __m256 k =
      _mm256_round_ps(_mm256_mul_ps(at, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  return _mm256_and_ps(exp_parts8(k, less_powers8(at, k)), alive);
}

}  // namespace nns::ops
#endif
