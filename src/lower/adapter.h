// Adapters: the communication that turns one layout of a tensor into another. Inside one device set
// a shortest path of collectives over the mesh; where layouts do not line up, or device sets
// differ, regions are moved point to point.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cost/links.h"
#include "lower/layout.h"

namespace nns::lower {

enum class Primitive {
  chunk,           // R → D(dim): a local slice
  value_chunk,     // R → V: the first keeps it, the others hold zeros
  all_reduce,      // V → R
  all_gather,      // D(dim) → R
  reduce_scatter,  // V → D(dim)
  all_to_all,      // D(from) → D(dim)
  move,            // regions point to point
};
std::string_view name_of(Primitive primitive);
// What the call of a step does; none of a local slice.
operators::Communication communication_of(Primitive primitive);

// One region of the whole tensor that `source` sends to `target` (equal: a local copy).
struct Move {
  int source = 0, target = 0;
  std::vector<Range> box;
};

// One step. A collective works along mesh axis `axis` of `before` (several for a joint all-reduce).
struct Step {
  Primitive primitive = Primitive::chunk;
  std::vector<int> axes;
  int dim = 0, from = 0;
  Layout before, after;
  std::vector<Move> moves;  // move only; ordered by target, then box
};

using cost::LinkCosts;

struct Adapter {
  std::vector<Step> steps;
  double seconds = 0;
  int64_t bytes = 0;  // payload that leaves the busiest device
};

// Returns the cheapest steps found from `from` to `to`; empty if every device already holds its
// piece. Ties are broken by order, so the same question gives the same answer. Throws a plan Error
// if `to` has value axes on other devices than `from`.
Adapter find_adapter(const Layout& from, const Layout& to, const TensorType& type,
                     const LinkCosts& costs = {});

// Regions that have to move so that every device of `to` holds its piece; neither has value axes.
// A device that holds a region itself copies it, other targets take turns among the holders.
std::vector<Move> moves_between(const Layout& from, const Layout& to, const Shape& shape);
// What a device sends or receives of `moves`, from the piece that it holds or into it: for each
// region the other device, then start and length in the piece per dimension, all in one list.
Shape sends_of(const std::vector<Move>& moves, const Piece& piece, int device);
Shape receives_of(const std::vector<Move>& moves, const Piece& piece, int device);
// The layout with each value axis made a replicated one: after the addends are summed.
Layout summed(Layout layout);

// As cost::ring_bytes.
int64_t ring_bytes(Primitive primitive, int64_t elements, int64_t element_bytes, int ranks);

}  // namespace nns::lower
