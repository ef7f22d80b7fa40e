// Lazy parameters and buffers: shape, dtype and initialiser; drawn by `materialize`.
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>

#include "script/state.h"
#include "tensor/arguments.h"
#include "tensor/call.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

Initializer read_init(lua_State* L, int table) {
  Initializer init;
  lua_getfield(L, table, "init");
  const int at = lua_gettop(L);
  if (!lua_isnil(L, at)) {
    luaL_checktype(L, at, LUA_TTABLE);
    const auto number = [&](const char* key, double fallback) {
      return script::field_number(L, at, key, fallback);
    };
    init.kind = script::field_string(L, at, "kind", "constant");
    if (init.kind == "constant") {
      init.a = number("value", 0);
    } else if (init.kind == "zeros" || init.kind == "ones") {
      init.a = init.kind == "ones" ? 1 : 0;
      init.kind = "constant";
    } else if (init.kind == "normal" || init.kind == "trunc_normal") {
      init.a = number("mean", 0);
      init.b = number("std", 1);
      init.c = number("cut", 2);
    } else if (init.kind == "uniform") {
      init.a = number("low", 0);
      init.b = number("high", 1);
    } else if (init.kind == "orthogonal") {
      init.a = number("gain", 1);
    } else if (init.kind == "buffer" || init.kind == "read") {
      const char* field = init.kind == "read" ? "read" : "compute";
      lua_getfield(L, at, field);
      if (!lua_isfunction(L, -1))
        fail(ErrorKind::model, "[tensor.parameter] init.{} is a {}; expected a function", field,
             luaL_typename(L, -1));
      init.compute = std::make_shared<script::Ref>(script::Ref::pop(L));
    } else if (init.kind != "eye") {
      throw Error(
          ErrorKind::model,
          fmt::format("[tensor.parameter] init.kind is '{}'; expected a known initialiser",
                      init.kind),
          "constant, zeros, ones, normal, trunc_normal, uniform, orthogonal, eye, buffer, read");
    }
  }
  lua_settop(L, at - 1);
  return init;
}

DType read_dtype(lua_State* L, int table) {
  const std::string name = script::field_string(L, table, "dtype", "float32");
  const auto dtype = dtype_from_name(name);
  if (!dtype) fail(ErrorKind::model, "[tensor.parameter] there is no dtype '{}'", name);
  return *dtype;
}

at::Tensor cut(const at::Tensor& whole, const Shape& start, const Shape& shape) {
  at::Tensor part = whole.detach();
  for (size_t d = 0; d < start.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), start[d], shape[d]);
  return part.clone(at::MemoryFormat::Contiguous);
}

// ({ part_of = parameter, start, shape [, draw] }) → the part of a parameter or buffer that begins
// at `start`: of its values where it has some, else drawn when it is materialised. With draw =
// false it has no values until it is given some.
int make_part(lua_State* L, const Parameter& whole) {
  auto p = std::make_shared<Parameter>(whole);
  const bool draw = script::field_boolean(L, 1, "draw", true);
  const auto sizes = [L](const char* field) {
    lua_getfield(L, 1, field);
    Shape list = script::check_ints(L, lua_gettop(L));
    lua_pop(L, 1);
    return list;
  };
  p->part = true;
  p->whole = whole.type.shape;
  p->start = sizes("start");
  p->type.shape = sizes("shape");
  NNS_CHECK(p->start.size() == p->whole.size() && p->type.shape.size() == p->whole.size(),
            "part of {} dimensions of {}", p->start.size(), to_string(whole.type));
  p->data.reset();
  p->grad_pending = false;
  if (!draw)
    p->init = {.kind = "none", .compute = nullptr};
  else if (whole.data.defined())
    p->data = cut(whole.data, p->start, p->type.shape).set_requires_grad(p->requires_grad);
  push(L, std::move(p));
  return 1;
}

// ({ shape | data, dtype, init, requires_grad, buffer, persistent, path }) → parameter
int make_parameter(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "part_of");
  if (!lua_isnil(L, -1)) {
    const std::shared_ptr<Parameter> whole = check_box(L, lua_gettop(L)).parameter;
    if (!whole) fail(ErrorKind::model, "[tensor.parameter] part_of is not a parameter");
    return make_part(L, *whole);
  }
  auto p = std::make_shared<Parameter>();
  p->is_buffer = script::field_boolean(L, 1, "buffer", false);
  p->persistent = script::field_boolean(L, 1, "persistent", true);
  p->path = script::field_string(L, 1, "path", "");
  lua_getfield(L, 1, "data");
  if (!lua_isnil(L, -1)) {
    p->data = check_real(L, lua_gettop(L)).detach();
    p->type = type_of(p->data);
  } else {
    lua_getfield(L, 1, "shape");
    if (!lua_istable(L, -1))
      fail(ErrorKind::model, "[tensor.parameter] shape is a {}; expected a list of sizes",
           luaL_typename(L, -1));
    p->type.shape = script::check_ints(L, lua_gettop(L));
    p->type.dtype = read_dtype(L, 1);
    p->init = read_init(L, 1);
  }
  p->requires_grad =
      script::field_boolean(L, 1, "requires_grad", !p->is_buffer && is_floating(p->type.dtype));
  if (p->data.defined()) p->data.set_requires_grad(p->requires_grad);
  push(L, std::move(p));
  return 1;
}

// Calls nnscaler::fill_KIND_ on `data`, giving it the initialiser's numbers by argument name. With
// `start`, data is the part of the parameter that begins there.
void fill_random(const Parameter& p, at::Tensor& data, int64_t seed,
                 const std::vector<int64_t>* start = nullptr) {
  const std::string name = fmt::format("nnscaler::fill_{}_", p.init.kind);
  const Operator* op = find_operator(name);
  if (op == nullptr) fail_unknown(name);
  const Overload& overload = op->overloads[0];
  torch::jit::Stack stack;
  const bool cut = p.init.kind == "trunc_normal";  // from -c to c
  const double low = cut ? -p.init.c : p.init.a, high = cut ? p.init.c : p.init.b;
  for (const Want& want : overload.args) {
    if (want.name == "self")
      stack.emplace_back(data);
    else if (want.name == "key")
      stack.emplace_back(p.path);
    else if (want.name == "seed")
      stack.emplace_back(seed);
    else if (want.name == "mean" || want.name == "gain")
      stack.emplace_back(p.init.a);
    else if (want.name == "std")
      stack.emplace_back(p.init.b);
    else if (want.name == "low")
      stack.emplace_back(low);
    else if (want.name == "high")
      stack.emplace_back(high);
    else if (want.name == "offset" && start != nullptr)
      stack.emplace_back(*start);
    else if (want.name == "full" && start != nullptr)
      stack.emplace_back(p.type.shape);
    else
      stack.push_back(want.fallback);
  }
  overload.op.callBoxed(stack);
}

at::Tensor computed(lua_State* L, const Parameter& p) {
  p.init.compute->push(L);
  lua_call(L, 0, 1);
  at::Tensor data = check_real(L, lua_gettop(L)).detach();
  // A model in another precision has its tables in it too.
  if (data.is_floating_point() && is_floating(p.type.dtype)) data = data.to(to_torch(p.type.dtype));
  if (type_of(data) != p.type)
    fail(ErrorKind::model, "[tensor.parameter] buffer '{}' was computed as {}; expected {}", p.path,
         to_string(type_of(data)), to_string(p.type));
  return data;
}

// What the initialiser reads of the part that begins at `start`.
at::Tensor read_part(lua_State* L, const Parameter& p, const Shape& start, const Shape& shape) {
  p.init.compute->push(L);
  script::push_ints(L, start);
  script::push_ints(L, shape);
  lua_call(L, 2, 1);
  at::Tensor data = check_real(L, lua_gettop(L)).detach();
  lua_pop(L, 1);
  if (data.is_floating_point() && is_floating(p.type.dtype)) data = data.to(to_torch(p.type.dtype));
  const TensorType expected{shape, p.type.dtype};
  if (type_of(data) != expected)
    fail(ErrorKind::model, "[tensor.parameter] '{}' was read as {}; expected {}", p.path,
         to_string(type_of(data)), to_string(expected));
  return data.contiguous();
}

at::Tensor drawn_part(lua_State* L, const Parameter& p, int64_t seed, const Shape& start,
                      const Shape& shape);

at::Tensor drawn(lua_State* L, const Parameter& p, int64_t seed) {
  if (p.part) {
    Parameter whole = p;
    whole.type.shape = p.whole;
    whole.part = false;
    whole.data.reset();
    return drawn_part(L, whole, seed, p.start, p.type.shape);
  }
  if (p.init.kind == "buffer") return computed(L, p);
  if (p.init.kind == "read") return read_part(L, p, Shape(p.type.shape.size(), 0), p.type.shape);
  const auto options = at::TensorOptions().dtype(to_torch(p.type.dtype));
  if (p.init.kind == "eye") {
    if (p.type.shape.size() != 2)
      fail(ErrorKind::model, "[tensor.parameter] '{}' is {}; expected a matrix for init 'eye'",
           p.path, to_string(p.type));
    return at::eye(p.type.shape[0], p.type.shape[1], options);
  }
  at::Tensor data = at::empty(p.type.shape, options);
  if (p.init.kind == "constant")
    data.fill_(p.init.a);
  else
    fill_random(p, data, seed);
  return data;
}

// The part of what `drawn` gives, without drawing the rest where the initialiser is element-wise.
at::Tensor drawn_part(lua_State* L, const Parameter& p, int64_t seed, const Shape& start,
                      const Shape& shape) {
  const std::string& kind = p.init.kind;
  if (p.data.defined()) return cut(p.data, start, shape);
  if (kind == "read") return read_part(L, p, start, shape);
  if (kind == "buffer" || kind == "eye" || kind == "orthogonal")
    return cut(drawn(L, p, seed), start, shape);
  at::Tensor data = at::empty(shape, at::TensorOptions().dtype(to_torch(p.type.dtype)));
  if (kind == "constant")
    data.fill_(p.init.a);
  else
    fill_random(p, data, seed, &start);
  return data;
}

}  // namespace

void set_init(lua_State* L, Parameter& parameter, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  lua_pushvalue(L, index);
  lua_createtable(L, 0, 1);
  lua_insert(L, -2);
  lua_setfield(L, -2, "init");
  parameter.init = read_init(L, lua_gettop(L));
  parameter.data.reset();
  lua_pop(L, 1);
}

int materialize(lua_State* L) {  // (parameter, seed [, device]) → parameter
  Box& box = check_box(L, 1);
  if (!box.parameter)
    fail(ErrorKind::model,
         "[tensor.parameter] materialize of a plain tensor; expected a parameter");
  const int64_t seed = script::check_int(L, 2);
  const c10::Device device = device_from_name(script::opt_string(L, 3, "cpu"));
  const std::shared_ptr<Parameter> p = box.parameter;
  lua_settop(L, 1);
  if (p->init.kind == "none") return 1;
  p->data = drawn(L, *p, seed).to(device).set_requires_grad(p->requires_grad);
  return 1;
}

// (parameter, seed, start, shape [, device]) → the part of what `materialize` would draw.
int draw_part(lua_State* L) {
  Box& box = check_box(L, 1);
  if (!box.parameter)
    fail(ErrorKind::model, "[tensor.parameter] draw_part of a plain tensor; expected a parameter");
  const std::shared_ptr<Parameter> p = box.parameter;
  const int64_t seed = script::check_int(L, 2);
  const std::vector<int64_t> start = script::check_ints(L, 3), shape = script::check_ints(L, 4);
  const c10::Device device = device_from_name(script::opt_string(L, 5, "cpu"));
  NNS_CHECK(start.size() == p->type.shape.size() && shape.size() == start.size(),
            "part of {} dimensions of {}", start.size(), to_string(p->type));
  push(L, drawn_part(L, *p, seed, start, shape).to(device));
  return 1;
}

void add_parameters(lua_State* L) {
  script::set_functions(L, {{"parameter", guard<make_parameter>}});
}

}  // namespace nns::tensor
