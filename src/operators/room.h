// What calls take of memory on the CPU beside their results, and how results lie where they are not
// in row-major order in memory of their own. By it the memory of a step is told to the byte.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "operators/call_view.h"

namespace nns::operators {

struct Laid {
  Shape strides = {};    // in elements; empty: row-major
  int64_t offset = 0;    // where it begins
  int64_t elements = 0;  // of the one memory that all results with a number here share; 0: its own
};

// Of each result; empty: all as usual.
std::vector<Laid> laid(const CallView& call);
// Whether the result is a view where the operands lie side by side in one memory.
bool joins(std::string_view op);
// Bytes that are there while the call runs.
int64_t workspace(const CallView& call);

}  // namespace nns::operators
