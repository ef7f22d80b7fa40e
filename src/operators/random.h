// How a rule asks for random numbers: counters of the step, a key of the call, and where the part
// lies in the unsplit tensor. Internal to src/operators.
#pragma once

#include <string>

#include "operators/derivative.h"

namespace nns::operators {

inline const graph::Symbol kSeed{"$seed"}, kStep{"$step"}, kMicro{"$micro"};

// The key of the call's draws: "<module>:<operator>#<ordinal>".
std::string random_key(const RuleCall& call, int ordinal);

// Where a shard lies, for draws; nil for a whole tensor.
Arg place(const Shape& where);

}  // namespace nns::operators
