// Schemas: names, types and defaults of the arguments of operators, in LibTorch's own notation.
// `schemas.inc` lists those of LibTorch and of our kernels as the registry in use spells them
// (tests/lua/schemas_spec.lua compares and renews it); what LibTorch does not have spells its own
// in its record.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operators/call_view.h"

namespace nns::operators {

struct Parameter {
  std::string name;
  bool keyword_only = false;
  bool written = false;          // the call changes this tensor: `Tensor(a!)`
  std::optional<Arg> otherwise;  // what an absent argument is; nothing: it must be there
};

struct Schema {
  std::vector<Parameter> parameters;
  bool returns_list = false;  // its result is one list of tensors

  const Parameter* find(std::string_view name) const;  // nullptr: there is none
};

// Schema of "aten::add.Tensor"; nullptr where neither LibTorch nor a record has one.
const Schema* schema_of(std::string_view op);
// Reads "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor". An internal
// Error where the text is not of this form.
Schema parse_schema(std::string_view text);
// Whether the argument is what its schema takes for an absent one. Numbers compare by value.
bool is_default(const Parameter& parameter, const Arg& value);
// Whether the call writes its first argument and returns it.
bool is_in_place(std::string_view op);

// All lines of schemas.inc, sorted.
std::vector<std::string_view> schema_lines();

}  // namespace nns::operators
