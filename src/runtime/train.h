// What the trainer does to whole lists of gradients in one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace nns::runtime {

// Multiplies every gradient in place by `scale` and returns the 2-norm of all of them together.
// Squares are summed in float64 over fixed blocks in a fixed order, so that the result does not
// depend on the number of threads. With scale 1 nothing is written.
double scale_and_norm(const std::vector<at::Tensor>& gradients, double scale);

}  // namespace nns::runtime
