// Which numbers our kernels for norms, gates, turns and rows of classes take: on a CPU float32, on
// a GPU 16 bits too. Said once for the calls that a program is written with; the operators that run
// them (src/ops) compose other calls of ATen's.
#pragma once

#include <string_view>

#include "base/types.h"

namespace nns::operators {

constexpr bool own_takes(std::string_view device, DType dtype) {
  if (device == "cuda") return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  return device == "cpu" && dtype == DType::f32;
}

}  // namespace nns::operators
