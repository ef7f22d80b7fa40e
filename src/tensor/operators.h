// Operators of LibTorch's dispatcher as the door sees them: overloads of one name in a fixed order,
// each argument with what it accepts.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <vector>

namespace nns::tensor {

enum class Kind {
  tensor,
  scalar,
  integer,
  real,
  boolean,
  string,
  dtype,
  device,
  layout,
  memory_format,
  generator,
  other  // not expressible in Lua; only its default can be used
};

struct Want {
  std::string name;
  Kind kind = Kind::other;
  bool list = false;
  bool optional = false;          // nil is a value
  bool optional_element = false;  // Tensor?[]
  bool sized = false;             // int[2]: one number stands for a list
  bool keyword_only = false;
  bool writes = false;
  bool has_default = false;
  c10::IValue fallback;          // default of the schema, or None
  std::string describe() const;  // "a tensor", "a list of integers or nil"
};

struct Overload {
  explicit Overload(c10::OperatorHandle handle);

  c10::OperatorHandle op;
  std::string full_name;  // aten::add.Tensor
  std::vector<Want> args;
  size_t positional = 0;           // leading arguments that are not keyword-only
  std::vector<int> result_is_arg;  // for each result the argument it is (in-place), or -1
  bool out = false;                // writes into arguments given by keyword
  bool random = false;             // draws from a generator
  const Want* find(std::string_view name, size_t* index) const;
};

struct Operator {
  std::string name;  // aten::add, or aten::add.Tensor when asked for by overload
  std::vector<Overload> overloads;
};

// Returns the operator "namespace::name" or "namespace::name.overload", or nullptr. The result
// lives as long as the process.
const Operator* find_operator(std::string_view name);

}  // namespace nns::tensor
