// Reduction of addends in order of rank: the same bits on every rank and in every backend of ours.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"

namespace nns::comm {

// Writes addends[0] + addends[1] + … into `out`. bfloat16 and float16 are summed in float32 and
// rounded once; bool is or (sum, max) or and (min).
void reduce_in_order(at::Tensor& out, const std::vector<at::Tensor>& addends, Reduce reduce);

}  // namespace nns::comm
