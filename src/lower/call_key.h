// The name of a call in profiles: what its time depends on, as far as a program tells.
#pragma once

#include <string>

#include "lower/program.h"
#include "lower/storage.h"

namespace nns::lower {

// Operator, types of the operands, attributes; whether it copies, and whether it writes into a
// gradient: "aten::linear(float32[4, 32], float32[64, 32], -)". An addend of a gradient is
// "accumulate(float32[64, 32])". Where a draw lies and what it is called do not count.
std::string call_key(const Program& program, const Storage& storage, const Instr& instr);

}  // namespace nns::lower
