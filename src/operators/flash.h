// What LibTorch's flash attention on a GPU serves, said once for the choice of a kernel and for the
// operator that calls it (ops/attention_flash.cpp).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/types.h"

namespace nns::operators {

constexpr int64_t kFlashWidest = 256, kFlashWidth = 8;  // width of a head: at most, a multiple of

constexpr bool flash_takes(std::string_view device, DType dtype) {
  return device == "cuda" && (dtype == DType::bf16 || dtype == DType::f16);
}

// Of operands that it takes. Where lengths differ, its causal triangle would begin elsewhere.
constexpr bool flash_serves(int64_t queries, int64_t keys, int64_t width, bool causal) {
  return width > 0 && width <= kFlashWidest && width % kFlashWidth == 0 && queries > 0 &&
         keys > 0 && (!causal || queries == keys);
}

}  // namespace nns::operators
