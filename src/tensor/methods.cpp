// Properties and methods of tensors that are not operators.
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <unordered_map>
#include <utility>

#include "script/state.h"
#include "tensor/call.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

using Getter = void (*)(lua_State*, Door&, Box&);

// A traced box cannot do `what`: the interceptor says where and why.
void refuse_traced(lua_State* L, const Box& box, const char* what, const char* hint) {
  if (!box.traced) return;
  if (Interceptor* interceptor = get_interceptor(L)) interceptor->refuse(L, what, hint);
}

const Shape shape_of(const Box& box) {
  return type_of(box).shape;
}

bool requires_grad(const Box& box) {
  if (box.parameter) return box.parameter->requires_grad;
  return box.traced ? box.traced->requires_grad : real_of(box).requires_grad();
}

void push_device(lua_State* L, Door&, Box& box) {
  const at::Tensor* data = data_of(box);
  script::push_string(L, data != nullptr ? data->device().str() : "cpu");
}
void refuse_addend(const Box& box) {
  if (box.parameter && box.parameter->grad_pending)
    throw Error(
        ErrorKind::usage,
        fmt::format("[tensor.grad] the gradient of '{}' is read before it is summed over the "
                    "ranks; it holds this rank's addend only",
                    box.parameter->path),
        "call loss:backward(), and optimizer:sync_shard_grad() before you read it");
}
void push_grad(lua_State* L, Door& door, Box& box) {
  const at::Tensor* data = data_of(box);
  if (data != nullptr && data->grad().defined()) refuse_addend(box);
  push(L, door, data != nullptr ? data->grad() : at::Tensor());
}
void push_grad_fn(lua_State* L, Door&, Box& box) {
  const at::Tensor* data = data_of(box);
  if (data != nullptr && data->grad_fn())
    script::push_string(L, data->grad_fn()->name());
  else
    lua_pushnil(L);
}
void push_kind(lua_State* L, Door&, Box& box) {
  script::push_string(L, box.released    ? "released"
                         : box.parameter ? "parameter"
                         : box.traced    ? "traced"
                                         : "real");
}
// In a run of several ranks the values of parameters and buffers are what the engine holds: it says
// which part of them this rank has. Key of the registry's table: address of a parameter → {
// parameter, tensor }.
constexpr const char* kHeld = "nnscaler.held";

// Pushes what this rank holds of a parameter; pushes nothing where the engine has said nothing.
bool push_held(lua_State* L, const Box& box) {
  if (!box.parameter) return false;
  luaL_newmetatable(L, kHeld);
  lua_pushlightuserdata(L, box.parameter.get());
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if (lua_istable(L, -1)) {
    lua_rawgeti(L, -1, 2);
    lua_remove(L, -2);
    return true;
  }
  lua_pop(L, 1);
  return false;
}

// (parameter, tensor [, where it begins in the whole]): `data` of the parameter shows the tensor.
int hold(lua_State* L) {
  const std::shared_ptr<Parameter> p = check_box(L, 1).parameter;
  if (!p) fail(ErrorKind::model, "[tensor.parameter] hold of a plain tensor; expected a parameter");
  check_real(L, 2);
  p->whole = p->type.shape;
  p->start = lua_isnoneornil(L, 3) ? Shape(p->whole.size()) : script::check_ints(L, 3);
  luaL_newmetatable(L, kHeld);
  lua_pushlightuserdata(L, p.get());
  lua_createtable(L, 2, 0);
  for (int i : {1, 2}) {
    lua_pushvalue(L, i);
    lua_rawseti(L, -2, i);
  }
  lua_rawset(L, -3);
  return 0;
}

void push_data(lua_State* L, Door& door, Box& box) {
  if (push_held(L, box)) {
    const at::Tensor held = check_real(L, lua_gettop(L)).detach();
    lua_pop(L, 1);
    return push(L, door, held);
  }
  if (box.parameter && !box.parameter->data.defined()) return lua_pushnil(L);
  push(L, door, real_of(box).detach());
}
void push_init(lua_State* L, Door&, Box& box) {
  if (!box.parameter) return lua_pushnil(L);
  const Initializer& init = box.parameter->init;
  lua_createtable(L, 0, 4);
  script::push_string(L, init.kind);
  lua_setfield(L, -2, "kind");
  const double values[] = {init.a, init.b, init.c};
  const char* names[] = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) {
    lua_pushnumber(L, values[i]);
    lua_setfield(L, -2, names[i]);
  }
}

// Of a part of a parameter, or of one of which this rank holds some; nil for others.
void push_part(lua_State* L, const Box& box, Shape Parameter::* field) {
  const bool held = push_held(L, box);
  if (held) lua_pop(L, 1);
  if (!held && (box.parameter == nullptr || !box.parameter->part)) return lua_pushnil(L);
  script::push_ints(L, (*box.parameter).*field);
}

const std::unordered_map<std::string_view, Getter>& getters() {
  static const std::unordered_map<std::string_view, Getter> table = {
      {"shape", [](lua_State* L, Door&, Box& box) { script::push_ints(L, shape_of(box)); }},
      {"dtype",
       [](lua_State* L, Door&, Box& box) { script::push_string(L, name_of(type_of(box).dtype)); }},
      {"device", push_device},
      {"requires_grad",
       [](lua_State* L, Door&, Box& box) { lua_pushboolean(L, requires_grad(box)); }},
      {"grad", push_grad},
      {"grad_fn", push_grad_fn},
      {"is_leaf",
       [](lua_State* L, Door&, Box& box) { lua_pushboolean(L, real_of(box).is_leaf()); }},
      {"kind", push_kind},
      {"data", push_data},
      {"init", push_init},
      {"path",
       [](lua_State* L, Door&, Box& box) {
         box.parameter ? script::push_string(L, box.parameter->path) : lua_pushnil(L);
       }},
      {"whole", [](lua_State* L, Door&, Box& box) { push_part(L, box, &Parameter::whole); }},
      {"start", [](lua_State* L, Door&, Box& box) { push_part(L, box, &Parameter::start); }},
      {"is_buffer",
       [](lua_State* L, Door&, Box& box) {
         lua_pushboolean(L, box.parameter && box.parameter->is_buffer);
       }},
      {"persistent",
       [](lua_State* L, Door&, Box& box) {
         lua_pushboolean(L, box.parameter && box.parameter->persistent);
       }},
      {"materialized",
       [](lua_State* L, Door&, Box& box) { lua_pushboolean(L, data_of(box) != nullptr); }}};
  return table;
}

void set_requires_grad(Box& box, bool flag) {
  if (box.parameter) {
    box.parameter->requires_grad = flag;
    if (!box.parameter->data.defined()) return;
  }
  real_of(box).set_requires_grad(flag);
}

// The dimension `d` of the shape, negative from the end.
int64_t size_at(const Shape& shape, int64_t d) {
  const auto n = static_cast<int64_t>(shape.size());
  if (d < -n || d >= n)
    fail(ErrorKind::model, "[tensor.size] dimension {}; expected {} to {} for shape {}", d, -n,
         n - 1, to_string(shape));
  return shape[static_cast<size_t>(d < 0 ? d + n : d)];
}

int size(lua_State* L) {  // (tensor [, dim])
  const Shape shape = shape_of(check_box(L, 1));
  if (lua_isnoneornil(L, 2))
    script::push_ints(L, shape);
  else
    lua_pushnumber(L, static_cast<double>(size_at(shape, script::check_int(L, 2))));
  return 1;
}
int dim(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(shape_of(check_box(L, 1)).size()));
  return 1;
}
int numel(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(nns::numel(shape_of(check_box(L, 1)))));
  return 1;
}
int stride(lua_State* L) {
  script::push_ints(L, check_real(L, 1).strides().vec());
  return 1;
}
int is_contiguous(lua_State* L) {
  const Box& box = check_box(L, 1);
  lua_pushboolean(L, box.traced || real_of(box).is_contiguous());
  return 1;
}
int is_floating_point(lua_State* L) {
  lua_pushboolean(L, is_floating(type_of(check_box(L, 1)).dtype));
  return 1;
}
int item(lua_State* L) {
  const Box& box = check_box(L, 1);
  refuse_traced(L, box, "item()", "compute with operators, or return the tensor from forward");
  const at::Tensor& x = real_of(box);
  if (x.numel() != 1)
    throw Error(ErrorKind::model,
                fmt::format("[tensor.item] a tensor of shape {} has {} elements; expected one",
                            to_string(x.sizes().vec()), x.numel()),
                "reduce it first (x:sum()), or use x:tolist()");
  push_ivalue(L, c10::IValue(x.item()));
  return 1;
}
int tolist(lua_State* L) {
  refuse_traced(L, check_box(L, 1), "tolist()", "compute with operators");
  return to_list(L);
}
int release_box(lua_State* L) {
  release(check_box(L, 1));
  return 0;
}

// Backward calls Lua (generated programs), and Lua belongs to this thread.
class Running {
 public:
  explicit Running(lua_State* L) : door_(door_of(L)), before_(std::exchange(door_.running, L)) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~Running() { door_.running = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Door& door_;
  lua_State* before_;
};

int backward(lua_State* L) {  // (tensor [, gradient [, { retain_graph, create_graph }]])
  const Box& box = check_box(L, 1);
  refuse_traced(L, box, "backward()",
                "the derivative of a traced model is made when it is lowered");
  const at::Tensor& x = real_of(box);
  at::Tensor gradient;
  if (!lua_isnoneornil(L, 2)) gradient = check_real(L, 2);
  bool retain = false, create = false;
  if (lua_istable(L, 3)) {
    create = script::field_boolean(L, 3, "create_graph", false);
    retain = script::field_boolean(L, 3, "retain_graph", create);
  }
  if (!gradient.defined() && x.numel() != 1)
    throw Error(ErrorKind::model,
                fmt::format("[tensor.backward] a loss of shape {} has {} elements; expected a "
                            "scalar",
                            to_string(x.sizes().vec()), x.numel()),
                "reduce it (loss:mean()), or pass the gradient: x:backward(gradient)");
  if (!x.requires_grad())
    throw Error(ErrorKind::model,
                "[tensor.backward] the tensor does not depend on anything that requires a gradient",
                "call requires_grad_() on the leaves, and compute outside of no_grad");
  const Running running(L);
  x.backward(gradient, retain, create);
  return 0;
}

std::vector<at::Tensor> tensors_at(lua_State* L, int index) {
  if (test_box(L, index) != nullptr) return {check_real(L, index)};
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<at::Tensor> list(lua_objlen(L, index));
  for (size_t i = 0; i < list.size(); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i + 1));
    list[i] = check_real(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  return list;
}

// Programs have one derivative, made when the graph is lowered.
void refuse_traced_gradients(lua_State* L, int index) {
  const auto refuse = [L](const Box& box) {
    refuse_traced(L, box, "T.grad",
                  "a program has no gradients of gradients; eager=true trains such a model");
  };
  if (const Box* box = test_box(L, index)) return refuse(*box);
  const size_t n = lua_istable(L, index) ? lua_objlen(L, index) : 0;
  for (size_t i = 1; i <= n; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    if (const Box* box = test_box(L, -1)) refuse(*box);
    lua_pop(L, 1);
  }
}

int gradients(lua_State* L) {  // (outputs, inputs [, options]) → list of gradients, false for none
  refuse_traced_gradients(L, 1);
  refuse_traced_gradients(L, 2);
  const auto outputs = tensors_at(L, 1), inputs = tensors_at(L, 2);
  std::vector<at::Tensor> seeds;
  bool retain = false, create = false, unused = false;
  if (lua_istable(L, 3)) {
    create = script::field_boolean(L, 3, "create_graph", false);
    retain = script::field_boolean(L, 3, "retain_graph", create);
    unused = script::field_boolean(L, 3, "allow_unused", false);
    lua_getfield(L, 3, "grad_outputs");
    if (!lua_isnil(L, -1)) seeds = tensors_at(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  const Running running(L);
  const auto grads = torch::autograd::grad(outputs, inputs, seeds, retain, create, unused);
  const bool single = test_box(L, 2) != nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!single) lua_rawgeti(L, 2, static_cast<int>(i + 1));
    refuse_addend(check_box(L, single ? 2 : -1));
    if (!single) lua_pop(L, 1);
  }
  lua_createtable(L, static_cast<int>(grads.size()), 0);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined())
      push(L, grads[i]);
    else
      lua_pushboolean(L, 0);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int requires_grad_(lua_State* L) {  // (tensor [, flag]) → tensor
  Box& box = check_box(L, 1);
  refuse_traced(L, box, "requires_grad_()", "mark parameters when the model is made");
  set_requires_grad(box, lua_isnoneornil(L, 2) || lua_toboolean(L, 2) != 0);
  lua_settop(L, 1);
  return 1;
}
int retain_grad(lua_State* L) {
  check_real(L, 1).retain_grad();
  lua_settop(L, 1);
  return 1;
}

// `a < b` in Lua is a boolean, which a tensor is not.
int refuse_order(lua_State* L) {
  const Box* box = test_box(L, 1) != nullptr ? test_box(L, 1) : test_box(L, 2);
  const char* hint =
      "compare with operators: x:lt(y), x:le(y), x:gt(y), x:ge(y); a number is "
      "x:item()";
  refuse_traced(L, *box, "a comparison with < or <=", hint);
  throw Error(ErrorKind::model,
              "[tensor.compare] tensors cannot be compared with <, <=, > or >=", hint);
}
int refuse_length(lua_State* L) {
  const char* hint = "use x:size(0), x:dim() or x:numel()";
  refuse_traced(L, check_box(L, 1), "the length operator #", hint);
  throw Error(ErrorKind::model, "[tensor.length] # of a tensor is not defined", hint);
}

}  // namespace

bool push_property(lua_State* L, Door& door, Box& box, std::string_view name) {
  const auto it = getters().find(name);
  if (it == getters().end()) return false;
  it->second(L, door, box);
  return true;
}

// Writes what this rank holds of a parameter.
void set_held(const Parameter& p, const at::Tensor& held, const at::Tensor& data) {
  if (type_of(data) != type_of(held))
    fail(ErrorKind::model,
         "[tensor.data] this rank holds {} of parameter '{}'; expected the same of its data, got "
         "{}",
         to_string(type_of(held)), p.path, to_string(type_of(data)));
  held.detach().copy_(data.detach());
}

bool set_property(lua_State* L, Door&, Box& box, std::string_view name, int value) {
  if (name == "requires_grad") {
    set_requires_grad(box, script::check_boolean(L, value));
  } else if (name == "grad") {
    const at::Tensor grad = lua_isnil(L, value) ? at::Tensor() : check_real(L, value);
    real_of(box).mutable_grad() = grad;
  } else if (!box.parameter) {
    return false;
  } else if (name == "grad_pending") {
    box.parameter->grad_pending = script::check_boolean(L, value);
  } else if (name == "path") {
    box.parameter->path = script::check_string(L, value);
  } else if (name == "dtype") {
    const auto dtype = dtype_from_name(script::check_string(L, value));
    if (!dtype)
      fail(ErrorKind::model, "[tensor.dtype] no dtype '{}'", script::check_string(L, value));
    Parameter& p = *box.parameter;
    if (p.part && *dtype != p.type.dtype)
      throw Error(
          ErrorKind::usage,
          fmt::format("[tensor.dtype] '{}' belongs to a parallel module, whose programs are "
                      "written for {}",
                      p.path, name_of(p.type.dtype)),
          "parallelize it with module_dtype");
    p.type.dtype = *dtype;
    if (p.data.defined())
      p.data = p.data.detach().to(to_torch(*dtype)).set_requires_grad(p.requires_grad);
  } else if (name == "init") {
    set_init(L, *box.parameter, value);
  } else if (name == "data") {
    Parameter& p = *box.parameter;
    if (lua_isnil(L, value)) {
      p.data.reset();
      return true;
    }
    const at::Tensor& data = check_real(L, value);
    if (push_held(L, box)) {
      set_held(p, check_real(L, lua_gettop(L)), data);
      lua_pop(L, 1);
      return true;
    }
    if (type_of(data) != p.type)
      fail(ErrorKind::model,
           "[tensor.data] parameter '{}' is {}; expected the same of its data, got {}", p.path,
           to_string(p.type), to_string(type_of(data)));
    p.data = data.detach().set_requires_grad(p.requires_grad);
  } else {
    return false;
  }
  return true;
}

void add_methods(lua_State* L) {
  script::set_functions(L, {{"size", guard<size>},
                            {"_hold", guard<hold>},
                            {"dim", guard<dim>},
                            {"numel", guard<numel>},
                            {"stride", guard<stride>},
                            {"is_contiguous", guard<is_contiguous>},
                            {"is_floating_point", guard<is_floating_point>},
                            {"item", guard<item>},
                            {"tolist", guard<tolist>},
                            {"release", guard<release_box>},
                            {"backward", guard<backward>},
                            {"requires_grad_", guard<requires_grad_>},
                            {"retain_grad", guard<retain_grad>},
                            {"materialize", guard<materialize>},
                            {"draw_part", guard<draw_part>},
                            {"_gradients", guard<gradients>},
                            {"_refuse_order", guard<refuse_order>},
                            {"_refuse_length", guard<refuse_length>}});
}

}  // namespace nns::tensor
