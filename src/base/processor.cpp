#include "base/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nns {

bool packs_16_bit_products() {
#if defined(__x86_64__)
  static const bool packs = [] {
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      return true;
    constexpr unsigned kConverts = 1U << 5U;  // AVX-NE-CONVERT: leaf 7, part 1, of EDX
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (d & kConverts) != 0;
  }();
  return packs;
#else
  return true;
#endif
}

}  // namespace nns
