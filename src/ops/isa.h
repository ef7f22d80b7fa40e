// Which instruction set our kernels use: the widest that this processor has, unless NNSCALER_ISA
// names a narrower one.
#pragma once

#include <string>
#include <vector>

namespace nns::ops {

// The one in use: "avx512", "avx2", "sse4" or "plain"; of other processors Highway's name of it.
std::string isa();
// Those that this build and processor have, widest first.
std::vector<std::string> isas();
// Uses another from now on; to be called before kernels run, or between them. Empty: the widest.
// Throws a usage Error for a name that is not among `isas`.
void choose_isa(const std::string& name);

}  // namespace nns::ops
