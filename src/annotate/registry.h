// Operators that a script registers: composites of other operators, and operators of the user's
// library. One registry a thread, since each rank thread has a script of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "annotate/grammar.h"

namespace nns::annotate {

struct Registered {
  std::string name;  // "mylib::swiglu"
  // Types of the results; empty: shapes from the annotation, dtype of the first tensor.
  std::function<Types(const CallView&)> infer;
  std::function<Texts(const CallView&)> annotations;
  std::vector<TransformRule> rules;
  // A composite: its calls for operands of these types, inputs in the order of CallView::operands.
  std::function<std::shared_ptr<const graph::Graph>(const CallView&)> body;
  OpInfo info;  // filled in by register_op
};

// Adds an operator, in place of one of the same name. Throws a usage Error for a name of the table.
void register_op(Registered op);
// The operator of this name, or nullptr.
const Registered* registered(std::string_view op);
std::vector<std::string> registered_names();  // sorted
// Forgets all of the calling thread: their functions belong to a script that ends.
void clear_registered();

}  // namespace nns::annotate
