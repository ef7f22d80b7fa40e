// Reads the Lua arguments of a call against the overloads of an operator.
#pragma once

#include <array>
#include <vector>

#include "tensor/call.h"
#include "tensor/door.h"
#include "tensor/operators.h"

namespace nns::tensor {

// The Lua arguments of one call: stack indices 1 … positional, then perhaps a table of keywords.
struct Frame {
  Frame(lua_State* state, Door& door_of_state);

  lua_State* L;
  Door& door;
  int positional = 0;
  int keywords = 0;  // stack index, or 0
  int keyword_count = 0;
  std::vector<int> sources;  // for each schema argument its stack index if positional, else 0

  // Whether integral numbers stay integers: there is a tensor, and none is floating or complex.
  // Without any tensor the operator decides: of whole numbers arange makes int64, as in PyTorch.
  bool integral();
  bool whole_numbers = false;

 private:
  int integral_ = -1;
};

// Returns the overload that takes the arguments and fills `call`, or throws an Error that says
// what is wrong. In order of preference: as they stand, a number for a tensor, trailing integers
// for one list of integers ("x:view(2, 3)").
const Overload& resolve(Frame& frame, const Operator& op, Call& call);

// A device by its name; opens LibTorch's CUDA library at the first "cuda".
c10::Device device_from_name(const std::string& name);
// A memory format or layout by name, or -1.
int memory_format_from_name(std::string_view name);
int layout_from_name(std::string_view name);

// Generators are userdata of this type.
inline constexpr const char* kGeneratorType = "nnscaler.Generator";

}  // namespace nns::tensor
