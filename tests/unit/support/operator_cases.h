// One small graph for every operator that has a derivative, and for the arguments that matter.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"
#include "support/interpreter.h"

namespace nns::test {

// `leaves` are those of the call by name and shape, "a=4,6 b=6+ i=4<5 m=4,6?": parameters in
// float64 unless a mark says otherwise:
//   +  between 0.5 and 1.5      ~  between -0.9 and 0.9      ^  between 1.5 and 2.5
//   f  float32                  <n an int64 input below n    ?  a boolean input
//   .  an input without gradient
// `lines` are calls (and constants) as in graph_text.h, separated by ';'.
struct OperatorCase {
  std::string leaves, lines;
  bool slope = true;  // its gradient is the slope, not what PyTorch defines beside it

  std::string title() const { return leaves + " | " + lines; }
};

const std::vector<OperatorCase>& operator_cases();

// The calls of a case alone.
graph::Graph calls_of(const OperatorCase& c);
// The graph of a case. Its loss is Σ k · y over the elements of every differentiable result y of
// the last call, for inputs k: each element of y has a slope of its own.
std::shared_ptr<const graph::Graph> graph_of(const OperatorCase& c);
// Numbers as the marks ask for.
Inputs inputs_of(const OperatorCase& c, const graph::Graph& graph, size_t micro_batches,
                 uint64_t seed);

}  // namespace nns::test
