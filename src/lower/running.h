// Buffers that every micro-batch writes: whether what they held before shows anywhere but in their
// own new contents, and how much of it those keep. Scale units that run micro-batches side by side
// do not see each other's writes.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace nns::lower {

// By value: whether it depends on what the buffer held. The result of a batch norm in training does
// not read the statistics it writes.
std::vector<bool> depends_on(const graph::Graph& graph, int buffer);

// Whether results, or new contents of other buffers, depend on what the buffer held.
bool is_read(const graph::Graph& graph, int buffer);

// The number a where a value is a · buffer + what does not depend on the buffer, element by
// element: followed through sums, differences, products and quotients with numbers, lerp, addcmul,
// addcdiv, casts between floating types, and batch_norm. Nothing where it is no such form.
std::optional<double> kept(const graph::Graph& graph, int buffer, int value);

}  // namespace nns::lower
