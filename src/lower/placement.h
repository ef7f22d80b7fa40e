// Placement: how the parts of every operator lie on the devices of a plan, read off the plan's
// cuts and the operators' annotations.
#pragma once

#include <optional>
#include <vector>

#include "annotate/grammar.h"
#include "lower/layout.h"
#include "plan/plan.h"

namespace nns::lower {

// How a call uses one tensor operand. Along axis a the gradient that the call gives for it is a sum
// of addends where `partial[a]` (the operand is whole on all devices of the axis, the work is not).
struct OperandUse {
  Layout layout;
  std::vector<bool> partial;
};

// How the parts that one device runs in turns cut what it holds of a tensor.
struct TurnCut {
  annotate::TensorSplit::Kind kind = annotate::TensorSplit::Kind::replicate;
  int dim = 0;                  // of kind dims
  bool keeps_gradient = false;  // every turn gives the whole gradient: only the first one's counts
  bool operator==(const TurnCut&) const = default;
};

// What a cut of the plan makes of a call: `split` of an identifier that has `total` elements in the
// whole call; nothing where it replicates.
struct PartCut {
  plan::Cut cut;
  std::optional<annotate::Split> split = {};
  int64_t total = 0;
};

struct NodePlacement {
  int stage = 0;
  std::vector<int> devices;  // each once, in the order of their parts
  std::vector<OperandUse>
      inputs;                   // tensor operands in argument order, lists expanded, nil left out
  std::vector<Layout> outputs;  // results of the schema
  std::vector<PartCut> cuts;    // over the devices, outer first
  // Co-located parts; layouts are those of all turns of a device together.
  int turns = 1;
  std::optional<PartCut> turn_cut;
  std::vector<TurnCut> turn_inputs, turn_outputs;  // empty: one turn
};

// Placement of a node. Throws a plan Error that names the operator where a cut does not fit its
// annotation.
NodePlacement place(const graph::Graph& graph, const graph::Node& node, const plan::OpPlan& op);

// The arguments of the part on `device`, one list a turn: sizes are rewritten, tensors unchanged.
std::vector<std::vector<graph::NamedArg>> args_on(const graph::Graph& graph,
                                                  const graph::Node& node,
                                                  const NodePlacement& placed, int device);

}  // namespace nns::lower
