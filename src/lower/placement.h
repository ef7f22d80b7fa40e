// Placement: how the parts of every operator lie on the devices of a plan, read off the plan's
// partition steps and the operators' annotations.
#pragma once

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

struct NodePlacement {
  int stage = 0;
  std::vector<OperandUse>
      inputs;                   // tensor operands in argument order, lists expanded, nil left out
  std::vector<Layout> outputs;  // results of the schema
  std::vector<graph::NamedArg> args;  // of the device's part: sizes rewritten, tensors unchanged
  // Co-located parts; layouts are those of all turns of a device together.
  int turns = 1;
  std::vector<TurnCut> turn_inputs, turn_outputs;       // empty: one turn
  std::vector<std::vector<graph::NamedArg>> turn_args;  // of each turn
};

// Placement of a node, with the arguments of the part on `device`. Throws a plan Error that names
// the operator where a step does not fit its annotation.
NodePlacement place(const graph::Graph& graph, const graph::Node& node, const plan::OpPlan& op,
                    int device);

}  // namespace nns::lower
