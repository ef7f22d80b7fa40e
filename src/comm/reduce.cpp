#include "comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <type_traits>

#include "base/error.h"

namespace nns::comm {
namespace {

// Addends are combined by blocks that stay in the first cache; so `out` may be an addend.
constexpr int64_t kBlock = 1024;

template <class T>
struct Sum {
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)  // wraps around
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
      return a + b;
  }
};
template <class T>
bool is_nan(T a) {
  if constexpr (std::is_integral_v<T>)
    return false;
  else
    return a != a;
}
template <class T>
struct Max {
  T operator()(T a, T b) const { return a > b || is_nan(a) ? a : b; }
};
template <class T>
struct Min {
  T operator()(T a, T b) const { return a < b || is_nan(a) ? a : b; }
};
struct Or {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a | b; }
};
struct And {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a & b; }
};

// T is stored, A is what is computed in. No element depends on another, also where out is an
// addend.
template <class T, class A, class Combine>
inline __attribute__((always_inline)) void reduce_blocks(void* out, const void* const* addends,
                                                         int n, int64_t count, Combine combine) {
  A total[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(addends[0]) + start;
    T* to = static_cast<T*>(out) + start;
    if (n == 2) {
      const T* second = static_cast<const T*>(addends[1]) + start;
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i)
        to[i] = static_cast<T>(combine(static_cast<A>(first[i]), static_cast<A>(second[i])));
      continue;
    }
    for (int64_t i = 0; i < length; ++i) total[i] = static_cast<A>(first[i]);
    for (int k = 1; k < n; ++k) {
      const T* addend = static_cast<const T*>(addends[k]) + start;
      for (int64_t i = 0; i < length; ++i) total[i] = combine(total[i], static_cast<A>(addend[i]));
    }
    for (int64_t i = 0; i < length; ++i) to[i] = static_cast<T>(total[i]);
  }
}

// The build's -O2 would not vectorise these loops.
template <class T, class A, class Combine>
__attribute__((optimize("O3"))) void run_anywhere(void* out, const void* const* addends, int n,
                                                  int64_t count, Combine combine) {
  reduce_blocks<T, A>(out, addends, n, count, combine);
}
#ifdef __x86_64__
template <class T, class A, class Combine>
__attribute__((optimize("O3"), target("avx2"))) void run_avx2(void* out, const void* const* addends,
                                                              int n, int64_t count,
                                                              Combine combine) {
  reduce_blocks<T, A>(out, addends, n, count, combine);
}
#endif

template <class T, class A, class Combine>
void run(void* out, const void* const* addends, int n, int64_t count, Combine combine) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return run_avx2<T, A>(out, addends, n, count, combine);
#endif
  run_anywhere<T, A>(out, addends, n, count, combine);
}

template <class T, class A = T>
void by_reduce(void* out, const void* const* addends, int n, int64_t count, Reduce reduce) {
  if (reduce == Reduce::sum)
    run<T, A>(out, addends, n, count, Sum<A>());
  else if (reduce == Reduce::max)
    run<T, A>(out, addends, n, count, Max<A>());
  else
    run<T, A>(out, addends, n, count, Min<A>());
}

}  // namespace

void reduce_in_order(void* out, const void* const* addends, int n, int64_t count,
                     at::ScalarType type, Reduce reduce) {
  switch (type) {
    case at::kFloat:
      return by_reduce<float>(out, addends, n, count, reduce);
    case at::kDouble:
      return by_reduce<double>(out, addends, n, count, reduce);
    case at::kBFloat16:
      return by_reduce<c10::BFloat16, float>(out, addends, n, count, reduce);
    case at::kHalf:
      return by_reduce<c10::Half, float>(out, addends, n, count, reduce);
    case at::kLong:
      return by_reduce<int64_t>(out, addends, n, count, reduce);
    case at::kInt:
      return by_reduce<int32_t>(out, addends, n, count, reduce);
    case at::kShort:
      return by_reduce<int16_t>(out, addends, n, count, reduce);
    case at::kChar:
      return by_reduce<int8_t>(out, addends, n, count, reduce);
    case at::kByte:
      return by_reduce<uint8_t>(out, addends, n, count, reduce);
    case at::kBool:
      if (reduce == Reduce::min) return run<uint8_t, uint8_t>(out, addends, n, count, And());
      return run<uint8_t, uint8_t>(out, addends, n, count, Or());
    default:
      fail(ErrorKind::communication, "[comm.reduce] {} cannot be reduced", c10::toString(type));
  }
}

}  // namespace nns::comm
