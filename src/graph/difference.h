// Where two graphs of a model differ first, in the words of its source.
#pragma once

#include <optional>
#include <string>

#include "graph/graph.h"

namespace nns::graph {

// Of the later of two graphs: "mlp.lua:12: aten::gelu of fc in place of aten::relu of fc"; nothing
// when their exact hashes agree.
std::optional<std::string> difference(const Graph& before, const Graph& after);

}  // namespace nns::graph
