#include "trace/probe.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <lua.hpp>
#include <memory>

#include "base/error.h"
#include "operators/record.h"
#include "operators/split.h"
#include "script/state.h"
#include "tensor/call.h"
#include "trace/convert.h"

namespace nns::trace {
namespace {

using annotate::TensorSplit;
using graph::Arg;
using graph::NamedArg;
using graph::ValueRef;
using operators::CallView;
using script::guarded;
using tensor::Box;

// A call with real tensors, as the table sees it: ids count the tensors in argument order, as
// CallView::operands does.
struct Seen {
  std::string op;
  std::vector<NamedArg> args;
  std::vector<TensorType> types;
  std::vector<at::Tensor> tensors;

  explicit Seen(const tensor::Call& call) : op(tensor::full_name(*call.op)) {
    const auto& declared = call.op->schema().arguments();
    for (size_t i = 0; i < call.args.size(); ++i)
      args.push_back({declared[i].name(), arg_of(call.args[i], declared[i])});
  }
  CallView view() const {
    return CallView(op, args, [this](int id) -> const TensorType& {
      return types.at(static_cast<size_t>(id));
    });
  }

 private:
  ValueRef add(const Box* box) {
    if (box == nullptr) return {};
    types.push_back(tensor::type_of(box->real));
    tensors.push_back(box->real);
    return {static_cast<int>(types.size()) - 1};
  }
  Arg arg_of(const tensor::Operand& operand, const c10::Argument& declared) {
    if (const auto* box = std::get_if<Box*>(&operand)) return add(*box);
    if (const auto* boxes = std::get_if<std::vector<Box*>>(&operand)) {
      std::vector<ValueRef> list;
      for (const Box* box : *boxes) list.push_back(add(box));
      return list;
    }
    const auto& value = std::get<c10::IValue>(operand);
    return value.isGenerator() ? Arg{} : to_arg(value, declared, op);
  }
};

void push_types(lua_State* L, const operators::Types& types) {
  lua_createtable(L, static_cast<int>(types.size()), 0);
  for (size_t i = 0; i < types.size(); ++i) {
    lua_createtable(L, 0, 2);
    script::push_ints(L, types[i].shape);
    lua_setfield(L, -2, "shape");
    script::push_string(L, name_of(types[i].dtype));
    lua_setfield(L, -2, "dtype");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

// What each output becomes: {kind = 'replicate' | 'value' | 'dims', axes = {…}}.
void push_outputs(lua_State* L, const std::vector<TensorSplit>& outputs) {
  static constexpr const char* names[] = {"replicate", "value", "dims"};
  lua_createtable(L, static_cast<int>(outputs.size()), 0);
  for (size_t i = 0; i < outputs.size(); ++i) {
    lua_createtable(L, 0, 2);
    script::push_string(L, names[static_cast<int>(outputs[i].kind)]);
    lua_setfield(L, -2, "kind");
    script::push_ints(L, {outputs[i].axes.begin(), outputs[i].axes.end()});
    lua_setfield(L, -2, "axes");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void set_int(lua_State* L, const char* key, int64_t value) {
  lua_pushnumber(L, static_cast<double>(value));
  lua_setfield(L, -2, key);
}

// Stands in the door for one call.
class Probe : public tensor::Interceptor {
 public:
  void refuse(lua_State*, std::string_view what, const char*) override {
    fail(ErrorKind::usage, "[verify.op] {} while an operator is probed", what);
  }
};

// Pushes {op, types, random, annotation, splits = {{input, dim, identifier, length, assisted,
// outputs}}}.
class Describe : public Probe {
 public:
  int record(lua_State* L, const tensor::Call& call) override {
    tensor::set_interceptor(L, nullptr);
    const Seen seen(call);
    const CallView view = seen.view();
    lua_createtable(L, 0, 6);
    script::push_string(L, seen.op);
    lua_setfield(L, -2, "op");
    push_types(L, operators::infer(view));
    lua_setfield(L, -2, "types");
    lua_pushboolean(L, operators::is_random(view));
    lua_setfield(L, -2, "random");
    lua_newtable(L);
    if (const auto binding = operators::bind(view)) {
      int n = 0;
      for (const annotate::Place place : binding->transform_space()) {
        const auto split = binding->split(place.input, place.dim, 1);
        lua_createtable(L, 0, 6);
        set_int(L, "input", place.input);
        set_int(L, "dim", place.dim);
        set_int(L, "length", binding->length(split.identifier));
        lua_pushboolean(L, operators::is_assisted(view, split));
        lua_setfield(L, -2, "assisted");
        script::push_string(L, split.identifier);
        lua_setfield(L, -2, "identifier");
        push_outputs(L, split.outputs);
        lua_setfield(L, -2, "outputs");
        lua_rawseti(L, -2, ++n);
      }
      script::push_string(L, binding->text());
      lua_setfield(L, -3, "annotation");
    }
    lua_setfield(L, -2, "splits");
    lua_pushboolean(L, true);  // one result alone might be taken for the operator's own
    return 2;
  }
};

// Runs one part of a split call on its slices of the tensors.
class Part : public Probe {
 public:
  int input = 0, dim = 0;
  int64_t parts = 1, part = 0;

  int record(lua_State* L, const tensor::Call& whole) override {
    tensor::set_interceptor(L, nullptr);
    const Seen seen(whole);
    const CallView view = seen.view();
    const auto binding = operators::bind(view);
    if (!binding) fail(ErrorKind::plan, "[verify.op] {} is never split", seen.op);
    const auto split = binding->split(input, dim, parts);
    const int64_t each = binding->length(split.identifier) / parts;
    std::vector<std::unique_ptr<Box>> slices;
    for (size_t i = 0; i < seen.tensors.size(); ++i) {
      at::Tensor slice = seen.tensors[i];
      for (const int axis : split.inputs.at(i).axes) {
        const int64_t length = slice.size(axis) / parts;
        slice = slice.narrow(axis, part * length, length);
      }
      slices.push_back(std::make_unique<Box>());
      slices.back()->real = slice.contiguous();  // as a rank holds it
    }
    const int64_t whole_length = each * parts;
    const auto local =
        operators::local_args(view, split, {part * each, each, whole_length, whole_length});
    tensor::Call call = whole;
    size_t next = 0;
    const auto replace = [&](Box*& box) {
      if (box != nullptr) box = slices.at(next++).get();
    };
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (auto* box = std::get_if<Box*>(&call.args[i]))
        replace(*box);
      else if (auto* boxes = std::get_if<std::vector<Box*>>(&call.args[i]))
        for (Box*& box : *boxes) replace(box);
      else if (local[i].value != seen.args[i].value)
        call.args[i] = changed(local[i].value);
    }
    return tensor::invoke(L, call);
  }

 private:
  static c10::IValue changed(const Arg& arg) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&arg)) return *list;
    return std::get<int64_t>(arg);
  }
};

// Calls `op` with the arguments from stack index 2 on under an interceptor.
int call_under(lua_State* L, tensor::Interceptor& interceptor) {
  const std::string op = script::check_string(L, 1);
  if (tensor::get_interceptor(L) != nullptr)
    throw Error(ErrorKind::usage, "[verify.op] an operator is not verified inside a trace");
  struct Guard {
    lua_State* L;
    ~Guard() { tensor::set_interceptor(L, nullptr); }
  } guard{L};
  tensor::set_interceptor(L, &interceptor);
  lua_remove(L, 1);
  return tensor::call_operator(L, op);
}

// (op, …) → description of the call by the table. The call does not run.
int probe(lua_State* L) {
  Describe describe;
  return call_under(L, describe);
}

// ({input, dim, parts, part}, op, …) → results of that part of the split call.
int run_part(lua_State* L) {
  Part part;
  luaL_checktype(L, 1, LUA_TTABLE);
  part.input = static_cast<int>(script::field_int(L, 1, "input", 0));
  part.dim = static_cast<int>(script::field_int(L, 1, "dim", 0));
  part.parts = script::field_int(L, 1, "parts", 1);
  part.part = script::field_int(L, 1, "part", 0);
  lua_remove(L, 1);
  return call_under(L, part);
}

}  // namespace

void add_probe(lua_State* L) {
  script::set_functions(L, {{"probe", guarded<probe>}, {"run_part", guarded<run_part>}});
}

}  // namespace nns::trace
