// Between the arguments of a graph and those of LibTorch's operators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/MemoryFormat.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace nns::trace {

// An argument that is not a tensor, as the graph spells it: dtypes, devices and layouts by name.
// Throws a model Error that names operator and argument where a graph cannot hold it.
graph::Arg to_arg(const c10::IValue& value, const c10::Argument& argument, const std::string& op);

// The type under `optional` ("int?" → "int"), as the schema spells it (ScalarType is not int).
c10::TypePtr plain_type(c10::TypePtr type);

// The memory format of this name ("channels_last"), or nothing.
std::optional<c10::MemoryFormat> find_format(std::string_view name);

// Finds an operator by the graph's spelling ("aten::add.Tensor"), or nothing.
std::optional<c10::OperatorHandle> find_operator(const std::string& op);

}  // namespace nns::trace
