// Buffers that every micro-batch writes: whether what they held before shows anywhere but in their
// own new contents. Scale units that run micro-batches side by side do not see each other's writes.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace nns::lower {

// By value: whether it depends on what the buffer held. The result of a batch norm in training does
// not read the statistics it writes.
std::vector<bool> depends_on(const graph::Graph& graph, int buffer);

// Whether results, or new contents of other buffers, depend on what the buffer held.
bool is_read(const graph::Graph& graph, int buffer);

}  // namespace nns::lower
