// Constraints: which cuts a person allows the calls of an operator inside a module to have.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace nns::solve {

// Of several that match a call, the one with the longest module holds, then the first.
struct Constraint {
  std::string op;      // "aten::linear", or "linear"; empty: every operator
  std::string module;  // part of the module's path; empty: every module
  std::vector<std::pair<int, int>> allowed = {};  // operand, dimension
  bool replica = true;                            // whether the call may run whole on every device
  std::string place = {};                         // where it was written, for messages
};

// Those of a YAML list in nnScaler's form:
//
//   - name: torch.nn.functional.linear   # or aten::linear, linear; optional
//     parent_module: layers.0.mlp        # part of the module's path; optional
//     allowed_partition_dims: ['0,0', '1,0']
//     replica_allowed: false             # true by default
//
// Throws a usage Error with file and line for anything else.
std::vector<Constraint> parse_constraints(std::string_view text, const std::string& file);

// Of each node the number of the constraint that holds for it, or -1. Throws a usage Error for one
// that matches no call.
std::vector<int> match(const std::vector<Constraint>& constraints, const graph::Graph& graph);

// "of 'linear' in 'h.0' (file.yaml:3:3)"
std::string to_string(const Constraint& constraint);

}  // namespace nns::solve
