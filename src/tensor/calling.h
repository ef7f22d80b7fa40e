// How operators become Lua functions (shared by the boxed and the fast door).
#pragma once

#include <lua.hpp>

#include <string_view>

#include "script/state.h"
#include "tensor/door.h"
#include "tensor/operators.h"

namespace nns::tensor {

// Calls an operator on the Lua arguments from stack index 1 to the top.
int call_with(lua_State* L, Door& door, const Operator& op);
[[noreturn]] void fail_unknown(std::string_view name);

// Pushes the operator as a plain C closure; hot operators get one without boxing.
void push_operator(lua_State* L, Door& door, const Operator& op);

// The closure of a hot operator (upvalues: Door*, Operator*), or nullptr.
lua_CFunction fast_function(std::string_view name);

// Reports the error of a call made without boxing, as a boxed call would.
int recover(lua_State* L, Door& door, const Operator& op, const c10::Error& e);

// Why no GPU can be used, or "".
std::string cuda_problem();

// c10's message without stack, kernel lists and line breaks.
std::string cause_of(const c10::Error& e);

// script::guarded for functions that call LibTorch directly: its errors lose their C++ stack.
template <lua_CFunction F>
int without_stack(lua_State* L) {
  try {
    return F(L);
  } catch (const c10::Error& e) {
    fail(ErrorKind::model, "[tensor.torch] {}", cause_of(e));
  }
}
template <lua_CFunction F>
inline constexpr lua_CFunction guard = &script::guarded<&without_stack<F>>;

// The parts of nnscaler._C.tensor and of the tensor type, each adding to the table on the top.
void add_methods(lua_State* L);          // methods of tensors: size, item, backward, …
void add_values(lua_State* L);           // tables to tensors and back, generators
void add_parameters(lua_State* L);       // lazy parameters
void add_modes(lua_State* L);            // grad mode, autocast, threads, scope, random context
void add_build_info(lua_State* L);       // version and place of LibTorch
int collect_box(lua_State* L) noexcept;  // __gc

// Properties of tensors by name: pushes the value, or returns false.
bool push_property(lua_State* L, Door& door, Box& box, std::string_view name);
// Sets a property, or returns false if there is none of this name.
bool set_property(lua_State* L, Door& door, Box& box, std::string_view name, int value);
// Draws a parameter's elements from its initialiser.
int materialize(lua_State* L);
int draw_part(lua_State* L);
// Takes another initialiser (a table); what was drawn before is forgotten.
void set_init(lua_State* L, Parameter& parameter, int index);
// tensor:tolist()
int to_list(lua_State* L);

}  // namespace nns::tensor
