// A program that torch.export wrote, as plain data: calls in order, on numbered values. It is what
// `Archive` holds, checked; `replay.h` runs it through the operator door, where it computes or is
// recorded like the calls of a Lua model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/graph.h"

namespace nns::trace::import {

class Archive;
struct Body;

struct Slot {  // a value of the body, by number
  int index = -1;
};

// An argument or result as the file spells it. Dtypes, memory formats, layouts and devices stand by
// name; a list may mix numbers and values.
struct Term {
  std::variant<std::monostate, Slot, bool, int64_t, double, std::string, DType, graph::Symbol,
               std::vector<Term>, std::shared_ptr<const Body>>
      value;
};

enum class Kind { tensor, integer, real, truth };  // of a slot

// Where the Python model made a call: module ("h.0.attn", below the exported root), line, text.
struct Origin {
  std::string module;
  SourceLoc loc;
  std::string text;
};

// One result of a call: one value, a list of them, or none (index -1: not there).
struct Result {
  std::vector<int> slots;
  bool list = false;
};

struct Step {
  // "aten::add.Tensor"; functions of numbers and higher-order operators keep Python's name
  // ("_operator.mul", "torch.ops.higher_order.cond").
  std::string op;
  std::vector<std::pair<std::string, Term>> args;  // by name of the schema
  std::vector<Result> results;
  Origin origin;
};

struct Body {
  std::vector<Kind> slots;
  std::vector<int> inputs;
  std::vector<Step> steps;
  std::vector<Term> outputs;
};

// A nested argument or result: leaves in order of the flat list.
struct Tree {
  enum class Kind { leaf, list, table, nothing };
  Kind kind = Kind::leaf;
  std::vector<std::string> keys;  // of a table
  std::vector<Tree> children;
};

enum class Role { parameter, buffer, constant, input, number };

struct Input {
  Role role = Role::input;
  std::string name;  // "h.0.attn.weight"; of an input its name in the graph
  bool persistent = true;
  Term value;                                 // of a number: what was exported
  std::optional<DType> dtype;                 // of an input that is a tensor
  std::vector<std::optional<int64_t>> sizes;  // nothing: any size
};

// A weight, buffer or constant: a view of a record's bytes, whose extent was checked.
struct Stored {
  std::string name, record;
  TensorType type;
  Shape strides;
  int64_t offset = 0;  // elements
  bool requires_grad = false;
  bool same(const Stored& other) const {
    return record == other.record && type == other.type && strides == other.strides &&
           offset == other.offset;
  }
};

struct Program {
  std::string name;           // class of the exported module
  std::string torch_version;  // that wrote it
  Body body;
  std::vector<Input> inputs;                            // one per input of the body
  std::vector<std::pair<size_t, std::string>> updates;  // output → buffer whose content it is
  std::vector<size_t> results;                          // outputs that the model returned
  Tree arguments, returned;
  std::vector<std::string> argument_names;
  std::vector<Stored> stored;  // sorted by name
};

// Reads and checks the program of an archive. Throws a state Error for what is broken, a model
// Error that names operator and source line for what cannot be imported.
Program read_program(const Archive& archive);

// Visits all calls, also those of sub-graphs, in program order.
template <class Visit>
void for_each_step(const Body& body, const Visit& visit) {
  for (const Step& step : body.steps) {
    visit(step);
    for (const auto& [name, term] : step.args)
      if (const auto* inner = std::get_if<std::shared_ptr<const Body>>(&term.value))
        for_each_step(**inner, visit);
  }
}

// "in module 'h.0' at gpt.py:31: `x = f(x)`"
std::string describe(const Origin& origin);

}  // namespace nns::trace::import
