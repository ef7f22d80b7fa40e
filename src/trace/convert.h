// Between the arguments of a graph and those of LibTorch's operators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace nns::trace {

// An argument that is no tensor, as the graph spells it: dtypes, devices and layouts by name.
// Throws a model Error that names operator and argument where a graph cannot hold it.
graph::Arg to_arg(const c10::IValue& value, const c10::Argument& argument, const std::string& op);

// Finds an operator by the graph's spelling ("aten::add.Tensor"), or nothing.
std::optional<c10::OperatorHandle> find_operator(const std::string& op);

// Types of the outputs by LibTorch's own Meta kernel, which computes shapes only; nothing if it has
// none for this call (`why` says what LibTorch said).
std::optional<std::vector<TensorType>> infer_by_meta(const std::string& op,
                                                     const std::vector<graph::NamedArg>& args,
                                                     const std::vector<graph::Value>& values,
                                                     std::string& why);

}  // namespace nns::trace
