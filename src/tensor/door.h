// What src/tensor keeps for one Lua State, and the quick test for a tensor that all of it uses.
#pragma once

#include <lua.hpp>

#include "tensor/box.h"
#include "tensor/scope.h"

namespace nns::tensor {

class Interceptor;

struct Door {
  int metatable_ref = LUA_NOREF;  // of nnscaler.Tensor
  Interceptor* interceptor = nullptr;
  Scope scope;
  lua_State* running = nullptr;  // the thread that called backward, while it runs
};

// The Door of the State that owns L; made by `open`.
Door& door_of(lua_State* L);

// Cheaper than comparing metatables: two calls into Lua for every tensor argument.
inline Box* test_box_at(lua_State* L, int index) noexcept {
  auto* box = static_cast<Box*>(lua_touserdata(L, index));
  if (box == nullptr || lua_objlen(L, index) != sizeof(Box)) return nullptr;
  return box->magic == Box::kMagic ? box : nullptr;
}

// Pushes a tensor (nil if undefined) under a Door at hand.
void push(lua_State* L, const Door& door, at::Tensor tensor);

// The real tensor of a box if it has one now, else nullptr.
inline const at::Tensor* data_of(const Box& box) noexcept {
  if (box.real.defined()) return &box.real;
  return box.parameter && box.parameter->data.defined() ? &box.parameter->data : nullptr;
}

// "float32[2, 3]" of any kind of box.
TensorType type_of(const Box& box);

}  // namespace nns::tensor
