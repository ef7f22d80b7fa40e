// Shapes of the results of operators that have no row in the operator table: LibTorch is asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace nns::trace {

// Types of the outputs of a call, a list result flattened; nothing where LibTorch cannot tell
// (`why` says what it said). First by the operator's Meta kernel, which computes shapes only. Many
// have none in C++ (fft, cdist, grid_sampler, …): those run on the CPU, on tensors of the true
// shapes when these have few elements, else on small ones, whose sizes must make those of the
// results linearly. Tensors that the graph holds as constants keep their elements.
std::optional<std::vector<TensorType>> infer_by_libtorch(const std::string& op,
                                                         const std::vector<graph::NamedArg>& args,
                                                         const std::vector<graph::Value>& values,
                                                         std::string& why);

}  // namespace nns::trace
