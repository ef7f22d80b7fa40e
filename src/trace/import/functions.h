// What an exported program calls beside operators: Python's functions of numbers, which compute
// sizes, and higher-order operators, which run sub-graphs.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "trace/import/program.h"

namespace nns::trace::import {

// Whether a target is such a function; operators ("torch.ops.aten.add.Tensor", "aten::add.Tensor")
// are not.
bool is_function(std::string_view target);
// Throws a model Error that names function and source line if it cannot be imported.
void check_function(const Step& step, const Body& body);

// The number that a function of numbers gives.
double number_of(const Step& step, const std::vector<double>& args);

// How a higher-order operator runs its sub-graph.
struct Inner {
  enum class Mode { plain, gradients, no_gradients, recompute };
  Mode mode = Mode::plain;
  std::shared_ptr<const Body> body;
  std::vector<Term> operands;
};
// Whether the step is one, and what it runs; `truth` gives the value of a condition.
bool is_higher_order(std::string_view target);
Inner inner_of(const Step& step, const std::function<bool(const Term&)>& truth);

}  // namespace nns::trace::import
