// Stages of a graph's operators under a plan that was made for another graph of the model, or where
// a buffer that every micro-batch writes must stay in one stage.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace nns::plan {

struct Mapped {
  // What the plan says of this operator, or of another call of its kind in its module; nullptr:
  // nothing that holds in this stage.
  const OpPlan* entry = nullptr;
  bool exact = false;  // the entry is the operator's own
  int stage = 0;
};

// One of each node. No operator lies in an earlier stage than what makes its operands. Operators
// that read weights stay where those rest as far as data flow allows; the others keep the plan's
// stage where it lies between those of their operands and readers, else that of their operands.
std::vector<Mapped> map_stages(const Plan& plan, const graph::Graph& graph, const Resting& rests);

// Whether the plan was made for the graph: the same operators, connected alike.
bool is_for(const Plan& plan, const graph::Graph& graph);

// Weights and buffers that are results themselves, ascending, and the stage that returns results:
// the last one that makes any.
std::vector<int> results_at_rest(const graph::Graph& graph);
int last_stage(const graph::Graph& graph, const std::vector<int>& stages);

// Stages in which weights and buffers rest when operators run in `stages`, by node: where they are
// read or returned, buffers that are written where their new content is made; the first stage where
// nothing reads them.
Resting resting(const graph::Graph& graph, const std::vector<int>& stages);

}  // namespace nns::plan
