// nnscaler.register_op: composites (Lua functions over tensors, recorded as one node) and operators
// of the user's library.
#include "trace/own_ops.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>

#include <lua.hpp>

#include "base/error.h"
#include "operators/kind.h"
#include "operators/record.h"
#include "script/state.h"
#include "tensor/door.h"
#include "trace/recorder.h"

namespace nns::trace {
namespace {

using annotate::TensorSplit;
using annotate::TransformRule;
using graph::Arg;
using operators::CallView;
using operators::NamedArg;
using operators::Record;
using script::guarded;

// Functions and tables of a registration, kept in the Lua registry.
struct Kept {
  lua_State* L;
  int ref;
  void push() const { lua_rawgeti(L, LUA_REGISTRYINDEX, ref); }
};

// Pushes a plain argument; tensors are pushed by the caller.
void push_plain(lua_State* L, const Arg& arg) {
  if (const auto* b = std::get_if<bool>(&arg)) return lua_pushboolean(L, *b);
  if (const auto* i = std::get_if<int64_t>(&arg)) return lua_pushnumber(L, static_cast<double>(*i));
  if (const auto* d = std::get_if<double>(&arg)) return lua_pushnumber(L, *d);
  if (const auto* s = std::get_if<std::string>(&arg)) return script::push_string(L, *s);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&arg))
    return script::push_ints(L, *list);
  lua_pushnil(L);
}

// Puts another recorder in the door while a body runs.
class Inner {
 public:
  Inner(lua_State* L, Recorder& recorder)
      : L_(L), before_(tensor::get_interceptor(L)), grad_(true), top_(lua_gettop(L)) {
    tensor::set_interceptor(L, &recorder);
  }
  ~Inner() {
    tensor::set_interceptor(L_, before_);
    lua_settop(L_, top_);
  }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

 private:
  lua_State* L_;
  tensor::Interceptor* before_;
  c10::AutoGradMode grad_;
  int top_;
};

// The calls that a function of a composite makes for the call's arguments, between tensors of the
// types `before` and `after`. Results may be nil where `optional`.
std::shared_ptr<const graph::Graph> calls_of(const Kept& fn, const CallView& call,
                                             const operators::Types& before,
                                             const operators::Types& after, bool optional) {
  lua_State* L = fn.L;
  Recorder recorder(std::string(call.op()), true);
  const Inner inner(L, recorder);
  luaL_checkstack(L, static_cast<int>(call.args().size() + before.size() + after.size()) + 8,
                  "too many arguments");
  fn.push();
  const int base = lua_gettop(L);
  int count = 0;
  const auto push_all = [&](const char* name, const operators::Types& types) {
    for (size_t i = 0; i < types.size(); ++i, ++count)
      tensor::push(L, recorder.add_input(fmt::format("{}{}", name, i), types[i]));
  };
  push_all("grad_", before);
  size_t next = 0;
  const auto operands = call.operands();
  for (const NamedArg& arg : call.args()) {
    if (arg.name == kBodyHash) continue;
    ++count;
    if (call.maybe_tensor(arg.name) != nullptr)
      tensor::push(L, recorder.add_input(arg.name, *operands.at(next++)));
    else
      push_plain(L, arg.value);
  }
  push_all("result_", after);
  script::State::call(L, count, LUA_MULTRET);
  std::vector<graph::Nest> outputs;
  for (int at = base; at <= lua_gettop(L); ++at) {
    graph::Nest& output = outputs.emplace_back();
    if (optional && lua_isnil(L, at)) continue;
    const tensor::Box* box = tensor::test_box(L, at);
    if (box == nullptr)
      call.fail(
          fmt::format("result {} is a {}; expected tensors", at - base + 1, luaL_typename(L, at)));
    output.node = recorder.output_of(L, *box);
  }
  auto graph = std::make_shared<graph::Graph>(recorder.finish(std::move(outputs)));
  for (const graph::Value& value : graph->values)
    if (value.role == graph::Role::constant)
      call.fail("its body uses a tensor made outside of it; expected one of its arguments");
  for (const graph::Node& node : graph->nodes)
    if (operators::is_random(CallView(*graph, node)))
      call.fail(
          fmt::format("its body draws random numbers ({}); expected a pure function", node.op));
  return graph;
}

std::shared_ptr<const graph::Graph> body_of(const Kept& fn, const CallView& call) {
  return calls_of(fn, call, {}, {}, false);
}

// Checked against the operands: one gradient of each one's shape, or nil. Trailing ones may be
// left out.
std::shared_ptr<const graph::Graph> backward_of(const Kept& fn, const CallView& call,
                                                const operators::Types& results) {
  auto graph = std::make_shared<graph::Graph>(*calls_of(fn, call, results, results, true));
  const auto operands = call.operands();
  if (graph->outputs.size() > operands.size())
    call.fail(fmt::format("`backward` returned {} gradients; expected {}, one per tensor argument",
                          graph->outputs.size(), operands.size()));
  graph->outputs.resize(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto* ref = std::get_if<graph::ValueRef>(&graph->outputs[i].node);
    if (ref != nullptr && graph->value(*ref).type.shape != operands[i]->shape)
      call.fail(fmt::format("`backward` returned {} as gradient {}; expected shape {}",
                            to_string(graph->value(*ref).type), i + 1,
                            to_string(operands[i]->shape)));
  }
  return graph;
}

operators::Types types_of(const graph::Graph& body) {
  operators::Types out;
  for (const graph::Nest& nest : body.outputs)
    out.push_back(body.value(std::get<graph::ValueRef>(nest.node)).type);
  return out;
}

// { shape =, dtype = } of each tensor and the plain values, as the functions of a spec get them.
int push_described(lua_State* L, const CallView& call) {
  int count = 0;
  for (const NamedArg& arg : call.args()) {
    if (arg.name == kBodyHash) continue;
    ++count;
    const TensorType* type = call.maybe_tensor(arg.name);
    if (type == nullptr) {
      push_plain(L, arg.value);
      continue;
    }
    lua_createtable(L, 0, 2);
    script::push_ints(L, type->shape);
    lua_setfield(L, -2, "shape");
    script::push_string(L, name_of(type->dtype));
    lua_setfield(L, -2, "dtype");
  }
  return count;
}

operators::Texts texts_of(const Kept& what, const CallView& call) {
  lua_State* L = what.L;
  const int top = lua_gettop(L);
  what.push();
  if (lua_isfunction(L, -1)) {
    script::State::call(L, push_described(L, call), 1);
  }
  operators::Texts out;
  if (lua_istable(L, -1)) {
    for (int i = 1; i <= static_cast<int>(lua_objlen(L, top + 1)); ++i) {
      lua_rawgeti(L, top + 1, i);
      out.push_back(script::check_string(L, -1));
      lua_pop(L, 1);
    }
  } else {
    out.push_back(script::check_string(L, -1));
  }
  lua_settop(L, top);
  return out;
}

operators::Types inferred(const Kept& what, const CallView& call) {
  lua_State* L = what.L;
  const int top = lua_gettop(L);
  what.push();
  script::State::call(L, push_described(L, call), LUA_MULTRET);
  operators::Types out;
  for (int at = top + 1; at <= lua_gettop(L); ++at) {
    luaL_checktype(L, at, LUA_TTABLE);
    lua_getfield(L, at, "shape");
    const auto shape = script::check_ints(L, lua_gettop(L));
    lua_pop(L, 1);
    const std::string name = script::field_string(L, at, "dtype", "float32");
    const auto dtype = dtype_from_name(name);
    if (!dtype) call.fail(fmt::format("`infer` returned dtype '{}'", name));
    out.push_back({shape, *dtype});
  }
  lua_settop(L, top);
  return out;
}

double counted(const Kept& what, const CallView& call) {
  lua_State* L = what.L;
  const int top = lua_gettop(L);
  what.push();
  script::State::call(L, push_described(L, call), 1);
  if (!lua_isnumber(L, -1)) call.fail("`flops` returned no number");
  const double flops = lua_tonumber(L, -1);
  lua_settop(L, top);
  return flops;
}

// 'R', 'V', 'D0', 'D1', …
TensorSplit split_of(const std::string& text) {
  using Kind = TensorSplit::Kind;
  if (text == "R") return {Kind::replicate, {}, false};
  if (text == "V") return {Kind::value, {}, false};
  if (text.size() > 1 && text[0] == 'D' &&
      text.find_first_not_of("0123456789", 1) == std::string::npos && text.size() < 4)
    return {Kind::dims, {std::stoi(text.substr(1))}, false};
  fail(ErrorKind::usage, "[register_op] '{}' is not a split; expected R, V or D with a dim, as D0",
       text);
}
std::vector<TensorSplit> splits_at(lua_State* L, int table, const char* key) {
  std::vector<TensorSplit> out;
  lua_getfield(L, table, key);
  luaL_checktype(L, -1, LUA_TTABLE);
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, -1)); ++i) {
    lua_rawgeti(L, -1, i);
    out.push_back(split_of(script::check_string(L, -1)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return out;
}

// Calls modify(arguments, parts, part), which returns the plain arguments to change, by name.
std::vector<NamedArg> modified(const Kept& fn, const std::vector<NamedArg>& args, int64_t parts,
                               int64_t part) {
  lua_State* L = fn.L;
  const int top = lua_gettop(L);
  fn.push();
  lua_createtable(L, 0, static_cast<int>(args.size()));
  for (const NamedArg& arg : args) {
    push_plain(L, arg.value);
    lua_setfield(L, -2, arg.name.c_str());
  }
  lua_pushnumber(L, static_cast<double>(parts));
  lua_pushnumber(L, static_cast<double>(part));
  script::State::call(L, 3, 1);
  luaL_checktype(L, -1, LUA_TTABLE);
  std::vector<NamedArg> out = args;
  for (NamedArg& arg : out) {
    if (std::holds_alternative<graph::ValueRef>(arg.value)) continue;
    lua_getfield(L, top + 1, arg.name.c_str());
    if (!lua_isnil(L, -1)) arg.value = plain_arg(L, lua_gettop(L), "modify", arg.name);
    lua_pop(L, 1);
  }
  lua_settop(L, top);
  return out;
}

Kept keep_field(lua_State* L, int table, const char* key) {
  lua_getfield(L, table, key);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return {L, LUA_NOREF};
  }
  return {L, luaL_ref(L, LUA_REGISTRYINDEX)};
}

// ({ name, annotation, body, backward, infer, flops, kind, rules = {{input, dim, inputs, outputs,
// modify}} })
int register_op(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  Record op;
  op.name = script::field_string(L, 1, "name", "");
  const Kept annotation = keep_field(L, 1, "annotation"), body = keep_field(L, 1, "body"),
             infer = keep_field(L, 1, "infer"), backward = keep_field(L, 1, "backward");
  if (annotation.ref != LUA_NOREF)
    op.annotations = [annotation](const CallView& call) { return texts_of(annotation, call); };
  if (body.ref != LUA_NOREF) {
    op.body = [body](const CallView& call) { return body_of(body, call); };
    op.infer = [body](const CallView& call) { return types_of(*body_of(body, call)); };
    if (backward.ref != LUA_NOREF)
      op.backward = [backward](const CallView& call, const operators::Types& results) {
        return backward_of(backward, call, results);
      };
  } else if (infer.ref != LUA_NOREF) {
    op.infer = [infer](const CallView& call) { return inferred(infer, call); };
  }
  if (const Kept flops = keep_field(L, 1, "flops"); flops.ref != LUA_NOREF)
    op.flops = [flops](const CallView& call) { return counted(flops, call); };
  if (const std::string name = script::field_string(L, 1, "kind", ""); !name.empty()) {
    const auto kind = operators::kind_from_name(name);
    if (!kind)
      fail(ErrorKind::usage, "[register_op] {}: kind is '{}'; expected one of {}", op.name, name,
           operators::kind_names());
    op.kind = *kind;
    if (*kind == operators::Kind::linear)
      op.autocast = {operators::Cast::lower, operators::Cast::lower};
    if (*kind == operators::Kind::class_loss)
      op.autocast = {operators::Cast::full, operators::Cast::full};
  }
  operators::Rules own;
  lua_getfield(L, 1, "rules");
  const int rules = lua_gettop(L);
  for (int i = 1; lua_istable(L, rules) && i <= static_cast<int>(lua_objlen(L, rules)); ++i) {
    lua_rawgeti(L, rules, i);
    const int at = lua_gettop(L);
    TransformRule rule;
    rule.input = static_cast<int>(script::field_int(L, at, "input", 0));
    rule.dim = static_cast<int>(script::field_int(L, at, "dim", 0));
    rule.inputs = splits_at(L, at, "inputs");
    rule.outputs = splits_at(L, at, "outputs");
    const Kept modify = keep_field(L, at, "modify");
    rule.modify = [modify](const std::vector<NamedArg>& args, int64_t parts, int64_t part) {
      return modify.ref == LUA_NOREF ? args : modified(modify, args, parts, part);
    };
    own.push_back(std::move(rule));
    lua_pop(L, 1);
  }
  op.rules = std::move(own);
  operators::register_record(std::move(op));
  return 0;
}

// (name, names of arguments, argument…) → results; while a model is traced
int composite(lua_State* L) {
  auto* recorder = dynamic_cast<Recorder*>(tensor::get_interceptor(L));
  NNS_CHECK(recorder != nullptr, "no trace is running");
  const std::string op = script::check_string(L, 1);
  std::vector<std::string> names;
  luaL_checktype(L, 2, LUA_TTABLE);
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, 2)); ++i) {
    lua_rawgeti(L, 2, i);
    names.push_back(script::check_string(L, -1));
    lua_pop(L, 1);
  }
  lua_settop(L, 2 + static_cast<int>(names.size()));
  return recorder->record_composite(L, op, names, 3);
}

int registered(lua_State* L) {  // () → names
  const auto names = operators::registered_names();
  lua_createtable(L, static_cast<int>(names.size()), 0);
  for (size_t i = 0; i < names.size(); ++i) {
    script::push_string(L, names[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// (path): opens a shared library, whose operators register themselves with LibTorch
int load_library(lua_State* L) {
  const std::string path = script::check_string(L, 1);
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    fail(ErrorKind::usage, "[register_op] library '{}' does not open: {}", path, dlerror());
  return 0;
}

}  // namespace

void add_own_ops(lua_State* L) {
  operators::clear_registered();  // those of an earlier script of this thread
  script::set_functions(L, {{"register_op", guarded<register_op>},
                            {"composite", guarded<composite>},
                            {"registered", guarded<registered>},
                            {"load_library", guarded<load_library>}});
}

}  // namespace nns::trace
