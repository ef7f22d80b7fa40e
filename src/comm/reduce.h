// Reduction of addends in order of rank: the same bits on every rank and in every backend of ours.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "comm/group.h"

namespace nns::comm {

// Writes addends[0] + addends[1] + … (n of them, `count` elements each) into `out`, which may be
// one of them. bfloat16 and float16 are summed in float32 and rounded once; bool is or (sum, max)
// or and (min); the greatest or least of NaN and a number is NaN. Throws on complex types.
void reduce_in_order(void* out, const void* const* addends, int n, int64_t count,
                     at::ScalarType type, Reduce reduce);

}  // namespace nns::comm
