// Memory of a Program, known before it runs: what it holds all the time, what a micro-batch keeps
// for its backward, and the most that its tensors take at one instruction.
#pragma once

#include "lower/program.h"

namespace nns::lower {

// Bytes.
struct Memory {
  int64_t parameters = 0, gradients = 0, buffers = 0, constants = 0;
  int64_t optimizer = 0;  // slots that its kind declares
  int64_t saved = 0;      // between forward and backward of one micro-batch
  int64_t peak = 0;       // of tensors made while one micro-batch runs; sample and seed not counted

  // The most at any time while `in_flight` micro-batches are between forward and backward.
  int64_t total(int64_t in_flight = 1) const {
    return parameters + gradients + buffers + constants + optimizer + (in_flight - 1) * saved +
           peak;
  }
};

// `slots` are the types of all that an optimizer keeps of the program's parameters.
Memory memory(const Program& program, const std::vector<TensorType>& slots = {});

}  // namespace nns::lower
