// Walks over nested results.
#pragma once

#include "graph/graph.h"

namespace nns::graph {

// Calls `visit(value id)` for every tensor of a nested result.
template <class F>
void for_each_value(const Nest& nest, F visit) {
  if (const auto* ref = std::get_if<ValueRef>(&nest.node)) {
    if (ref->id >= 0) visit(ref->id);
  } else if (const auto* fields =
                 std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node)) {
    for (const auto& [key, field] : *fields) for_each_value(field, visit);
  }
}

}  // namespace nns::graph
