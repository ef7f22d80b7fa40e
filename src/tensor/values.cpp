// Lua tables to tensors and back; generators with an explicit seed.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include "script/state.h"
#include "tensor/arguments.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

// Shape of nested lists by their first elements.
Shape nested_shape(lua_State* L, int index) {
  Shape shape;
  const int top = lua_gettop(L);
  lua_pushvalue(L, index);
  while (lua_istable(L, -1)) {
    shape.push_back(static_cast<int64_t>(lua_objlen(L, -1)));
    if (shape.size() > 64) fail(ErrorKind::model, "[tensor.tensor] lists nested deeper than 64");
    if (shape.back() == 0) break;
    lua_rawgeti(L, -1, 1);
  }
  lua_settop(L, top);
  return shape;
}

struct Reading {
  const Shape& shape;
  std::vector<double> values;
  bool any_boolean = false, any_number = false;
};

void read_nested(lua_State* L, Reading& reading, size_t depth) {  // [value]
  if (depth < reading.shape.size()) {
    const auto n = lua_istable(L, -1) ? static_cast<int64_t>(lua_objlen(L, -1)) : -1;
    if (n != reading.shape[depth])
      fail(ErrorKind::model, "[tensor.tensor] a list at depth {} has {}; expected {} elements",
           depth, n < 0 ? std::string("no elements") : fmt::format("{} elements", n),
           reading.shape[depth]);
    luaL_checkstack(L, 2, "lists nested too deeply");
    for (int i = 1; i <= n; ++i) {
      lua_rawgeti(L, -1, i);
      read_nested(L, reading, depth + 1);
      lua_pop(L, 1);
    }
    return;
  }
  switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
      reading.any_number = true;
      reading.values.push_back(lua_tonumber(L, -1));
      return;
    case LUA_TBOOLEAN:
      reading.any_boolean = true;
      reading.values.push_back(lua_toboolean(L, -1));
      return;
    default:
      fail(ErrorKind::model, "[tensor.tensor] an element is a {}; expected a number or boolean",
           lua_istable(L, -1) ? "list (lists are ragged)" : luaL_typename(L, -1));
  }
}

int from_table(lua_State* L) {  // (nested lists, number or boolean [, dtype [, device]])
  lua_settop(L, 3);
  const Shape shape = nested_shape(L, 1);
  Reading reading{shape, {}};
  lua_pushvalue(L, 1);
  read_nested(L, reading, 0);
  DType dtype = reading.any_boolean && !reading.any_number ? DType::boolean : DType::f32;
  if (!lua_isnoneornil(L, 2)) {
    const std::string name = script::check_string(L, 2);
    const auto asked = dtype_from_name(name);
    if (!asked) fail(ErrorKind::model, "[tensor.tensor] there is no dtype '{}'", name);
    dtype = *asked;
  }
  at::Tensor x = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  std::copy(reading.values.begin(), reading.values.end(), x.mutable_data_ptr<double>());
  push(L, x.to(at::TensorOptions()
                   .dtype(to_torch(dtype))
                   .device(device_from_name(script::opt_string(L, 3, "cpu")))));
  return 1;
}

template <class T, class Push>
void push_nested(lua_State* L, const T*& next, at::IntArrayRef shape, const Push& push_value) {
  if (shape.empty()) return push_value(*next++);
  luaL_checkstack(L, 4, "tensor nested too deeply");
  lua_createtable(L, static_cast<int>(shape[0]), 0);
  for (int64_t i = 0; i < shape[0]; ++i) {
    push_nested(L, next, shape.slice(1), push_value);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

int generator(lua_State* L) {  // (seed [, device])
  const int64_t seed = script::check_int(L, 1);
  const c10::Device device = device_from_name(script::opt_string(L, 2, "cpu"));
  at::Generator made = at::globalContext().defaultGenerator(device).clone();
  made.set_current_seed(static_cast<uint64_t>(seed));
  script::push_object<at::Generator>(L, kGeneratorType, std::move(made));
  return 1;
}

int is_dtype(lua_State* L) {  // (name)
  lua_pushboolean(L, dtype_from_name(script::check_string(L, 1)).has_value());
  return 1;
}

}  // namespace

int to_list(lua_State* L) {
  const at::Tensor x = check_real(L, 1).detach();
  if (x.is_complex())
    throw Error(ErrorKind::model, "[tensor.tolist] complex numbers have no Lua form",
                "use aten.view_as_real(x)");
  if (x.scalar_type() == at::kBool) {
    const at::Tensor flat = x.to(at::kCPU).contiguous();
    const bool* next = flat.const_data_ptr<bool>();
    push_nested(L, next, flat.sizes(), [L](bool v) { lua_pushboolean(L, v); });
  } else {
    const at::Tensor flat = x.to(at::kCPU, at::kDouble).contiguous();
    const double* next = flat.const_data_ptr<double>();
    push_nested(L, next, flat.sizes(), [L](double v) { lua_pushnumber(L, v); });
  }
  return 1;
}

void add_values(lua_State* L) {
  script::set_functions(L, {{"from_table", guard<from_table>},
                            {"generator", guard<generator>},
                            {"is_dtype", guard<is_dtype>}});
}

}  // namespace nns::tensor
