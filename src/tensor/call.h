// The one door from Lua to operators. A call is parsed against its FunctionSchema; then it runs in
// LibTorch, or goes to the Interceptor of the State (the tracer) while one is set.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tensor/box.h"

namespace c10 {
class OperatorHandle;
}

namespace nns::tensor {

// A tensor argument is a Box* (nullptr: nil), a list of tensors a vector of them; all else is an
// IValue. A Lua number where the schema wants a tensor is an IValue of a 0-dim "wrapped number".
// The boxes are anchored by the Lua stack during the call only.
using Operand = std::variant<c10::IValue, Box*, std::vector<Box*>>;

struct Call {
  const c10::OperatorHandle* op = nullptr;  // lives as long as the process
  std::vector<Operand> args;  // one per schema argument, in its order, defaults filled
};

class Interceptor {
 public:
  virtual ~Interceptor() = default;
  // Records the call, pushes its results (as LibTorch's would be pushed: one Lua value a return,
  // a list of tensors as a table) and returns how many. May throw. For an in-place operator the
  // result pushed is replaced by the caller's own self.
  virtual int record(lua_State* L, const Call& call) = 0;
  // Throws: while tracing, `what` ("item()", "`<`", "#", printing) needs data that does not exist.
  // To be called where a traced box meets such a request, before anything else is tried.
  [[noreturn]] virtual void refuse(lua_State* L, std::string_view what, const char* hint) = 0;
};

// Sets the interceptor of this State (nullptr: calls run) and returns the one before.
Interceptor* set_interceptor(lua_State* L, Interceptor* interceptor);
Interceptor* get_interceptor(lua_State* L);

// Runs the call in LibTorch, pushes its results and returns how many. Parameters stand for their
// data. Errors name operator, module path and all tensor shapes.
int invoke(lua_State* L, const Call& call);

// Calls an operator ("aten::linear", or with overload "aten::add.Tensor") on the Lua arguments from
// stack index 1 to the top, with all of the door's conversions; returns the number of results.
int call_operator(lua_State* L, std::string_view name);

// Pushes one result: numbers, booleans, strings, tensors, lists and tuples (as tables), nil.
void push_ivalue(lua_State* L, const c10::IValue& value);

// "aten::add.Tensor"; no dot when the overload is unnamed.
std::string full_name(const c10::OperatorHandle& op);

}  // namespace nns::tensor
