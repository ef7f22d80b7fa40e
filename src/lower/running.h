// Running buffers: how the new content of a buffer depends on the old one. Scale units that run
// other micro-batches of a step put their updates in order with it.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace nns::lower {

struct Running {
  // new = carry · old + what the micro-batch gives; nothing where it is not of this form.
  std::optional<double> carry;
  bool read = false;  // whether results, or other buffers, depend on the old content
};

// Of a buffer that `graph.buffer_updates` names.
Running running(const graph::Graph& graph, int buffer);

}  // namespace nns::lower
