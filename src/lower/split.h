// Splitting of a backward pass into gradients of activations and gradients of weights.
#pragma once

#include <vector>

#include "lower/program.h"

namespace nns::lower {

// By slot: whether it is made of parameters, buffers and constants alone in this segment.
std::vector<bool> made_of_weights(const Program& program, const Segment& forward);

// Takes out of `backward` what neither the slots `roots` nor messages to other stages depend on:
// accumulations, and calls that only they need. Order is kept in both parts.
std::vector<Instr> take_weight_part(const Program& program, std::vector<Instr>& backward,
                                    const std::vector<int>& roots);

}  // namespace nns::lower
