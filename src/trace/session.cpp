// One trace of one model: inputs in, results out, and the State as it was before.
#include <c10/core/GradMode.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <lua.hpp>

#include "base/error.h"
#include "bind/graph.h"
#include "script/state.h"
#include "tensor/call.h"
#include "tensor/door.h"
#include "tensor/scope.h"
#include "trace/import/open.h"
#include "trace/own_ops.h"
#include "trace/probe.h"
#include "trace/recorder.h"
#include "trace/schemas.h"
#include "trace/source.h"

namespace nns::trace {
namespace {

using graph::Nest;
using script::guarded;

constexpr int kMaxDepth = 32;  // of nested samples and results

// The Recorder stands in the door while this lives, also if an error leaves the model early.
class Watch {
 public:
  Watch(lua_State* L, Recorder& recorder, bool training)
      : L_(L), grad_(training), depth_(tensor::scope_of(L).module_depth()) {
    if (tensor::get_interceptor(L) != nullptr)
      throw Error(ErrorKind::usage, "[trace.nested] a model under trace cannot trace another",
                  "call the inner module directly");
    ordinals_ = tensor::scope_of(L).reset_ordinals();
    tensor::set_interceptor(L, &recorder);
  }
  ~Watch() {
    tensor::set_interceptor(L_, nullptr);
    tensor::scope_of(L_).reset_modules(depth_);
    tensor::scope_of(L_).set_ordinals(std::move(ordinals_));
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  lua_State* L_;
  c10::AutoGradMode grad_;
  int depth_;
  std::unordered_map<std::string, int> ordinals_;
};

int absolute(lua_State* L, int index) {
  return index < 0 ? lua_gettop(L) + index + 1 : index;
}

// Keys of the table at `index` in the order of graphs: list entries, other numbers, then names.
struct Key {
  bool number = false;
  double order = 0;
  std::string name;
};
std::vector<Key> keys_of(lua_State* L, int index) {
  std::vector<Key> keys;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TNUMBER) {
      const double n = lua_tonumber(L, -1);
      keys.push_back({true, n, fmt::format("{}", n)});
    } else if (lua_type(L, -1) == LUA_TSTRING) {
      keys.push_back({false, 0, script::check_string(L, -1)});
    } else {
      fail(ErrorKind::model,
           "[trace.fields] a {} is a key of a nested table; expected names or numbers",
           luaL_typename(L, -1));
    }
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    if (a.number != b.number) return a.number;
    return a.number ? a.order < b.order : a.name < b.name;
  });
  return keys;
}
void get_field(lua_State* L, int table, const Key& key) {
  if (key.number)
    lua_pushnumber(L, key.order);
  else
    script::push_string(L, key.name);
  lua_rawget(L, table);
}
void set_field(lua_State* L, int table, const Key& key) {  // [value] → []
  if (key.number)
    lua_pushnumber(L, key.order);
  else
    script::push_string(L, key.name);
  lua_insert(L, -2);
  lua_rawset(L, table);
}

// Pushes what the model gets for the argument at `index`: inputs in place of tensors, all else as
// it is. With `grads`, an input wants a gradient where the tensor does.
void push_argument(lua_State* L, int index, const std::string& name, Recorder& recorder, bool grads,
                   int depth) {
  index = absolute(L, index);
  luaL_checkstack(L, 8, "sample nested too deeply");
  if (const tensor::Box* box = tensor::test_box(L, index)) {
    const at::Tensor* data = tensor::data_of(*box);
    const bool wants = grads && data != nullptr && data->requires_grad();
    tensor::push(L, recorder.add_input(name, tensor::type_of(*box), wants));
    return;
  }
  if (lua_type(L, index) != LUA_TTABLE) {
    lua_pushvalue(L, index);
    return;
  }
  if (depth > kMaxDepth)
    fail(ErrorKind::model, "[trace.input] input '{}' is nested too deeply", name);
  lua_newtable(L);
  const int copy = lua_gettop(L);
  for (const Key& key : keys_of(L, index)) {
    get_field(L, index, key);
    push_argument(L, -1, fmt::format("{}.{}", name, key.name), recorder, grads, depth + 1);
    lua_remove(L, -2);
    set_field(L, copy, key);
  }
}

Nest result_of(lua_State* L, int index, const std::string& name, Recorder& recorder, int depth) {
  index = absolute(L, index);
  luaL_checkstack(L, 8, "result nested too deeply");
  if (const tensor::Box* box = tensor::test_box(L, index)) return {recorder.output_of(L, *box)};
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return {};
    case LUA_TBOOLEAN:
      return {lua_toboolean(L, index) != 0};
    case LUA_TNUMBER:
      return {lua_tonumber(L, index)};
    case LUA_TSTRING:
      return {script::check_string(L, index)};
    case LUA_TTABLE:
      break;
    default:
      fail(ErrorKind::model,
           "[trace.output] result {} of forward is a {}; expected tensors, numbers, strings or "
           "tables "
           "of them",
           name, luaL_typename(L, index));
  }
  if (depth > kMaxDepth)
    fail(ErrorKind::model, "[trace.output] result {} is nested too deeply", name);
  std::vector<std::pair<std::string, Nest>> fields;
  for (const Key& key : keys_of(L, index)) {
    get_field(L, index, key);
    fields.emplace_back(
        key.name, result_of(L, -1, fmt::format("{}.{}", name, key.name), recorder, depth + 1));
    lua_pop(L, 1);
  }
  return {std::move(fields)};
}

// What stands where the loss is due, in words.
std::string describe(const Nest& result) {
  const auto* fields = std::get_if<std::vector<std::pair<std::string, Nest>>>(&result.node);
  if (fields == nullptr) return "not a tensor";
  std::vector<std::string> names;
  for (const auto& [name, value] : *fields) names.push_back(name);
  return fmt::format("a table of {}", fmt::join(names, ", "));
}

void check_loss(const std::vector<Nest>& outputs, const Recorder& recorder,
                const std::string& place) {
  const char* hint = "forward returns the loss first: loss, or loss, { tokens = n, … }";
  if (outputs.empty() || std::holds_alternative<std::monostate>(outputs[0].node))
    throw Error(ErrorKind::model,
                fmt::format("[trace.loss] forward returns nothing at {}; expected a loss", place),
                hint);
  const auto* loss = std::get_if<graph::ValueRef>(&outputs[0].node);
  if (loss == nullptr)
    throw Error(ErrorKind::model,
                fmt::format("[trace.loss] the first result of forward is {} at {}; expected a loss",
                            describe(outputs[0]), place),
                hint);
  const TensorType& type = recorder.type_of(*loss);
  if (!type.shape.empty() || !is_floating(type.dtype))
    throw Error(ErrorKind::model,
                fmt::format("[trace.loss] the loss that forward returns at {} is {}; expected a "
                            "floating-point scalar",
                            place, to_string(type)),
                hint);
  if (outputs.size() < 2) return;
  const auto* fields = std::get_if<std::vector<std::pair<std::string, Nest>>>(&outputs[1].node);
  if (fields == nullptr) return;
  for (const auto& [name, value] : *fields) {
    if (name != "tokens" || std::holds_alternative<double>(value.node)) continue;
    const auto* tokens = std::get_if<graph::ValueRef>(&value.node);
    if (tokens == nullptr || numel(recorder.type_of(*tokens).shape) != 1)
      throw Error(
          ErrorKind::model,
          fmt::format("[trace.loss] `tokens` that forward returns at {} is {}; expected a number "
                      "or a tensor of one element",
                      place,
                      tokens != nullptr ? to_string(recorder.type_of(*tokens)) : "no number"),
          "tokens is how many addends the mean loss has, as in (labels ~= -100):sum()");
  }
}

// Calls `visit(index)` with each entry of the list t[key] on the stack.
template <class Visit>
void each(lua_State* L, int table, const char* key, Visit visit) {
  lua_getfield(L, table, key);
  luaL_checktype(L, -1, LUA_TTABLE);
  const int list = lua_gettop(L);
  const auto n = static_cast<int>(lua_objlen(L, list));
  for (int i = 1; i <= n; ++i) {
    lua_rawgeti(L, list, i);
    visit(lua_gettop(L));
    lua_settop(L, list);
  }
  lua_pop(L, 1);
}
// ({ name, training, loss, model, forward, args, arg_names, parameters, aliases }) → graph,
// warnings, anchors = list of { name, node }. With loss = false the results are free, and inputs
// may want gradients. `args` has its length as n; parameters are { {name, parameter}, … }, aliases
// { {alias, name}, … }.
int record(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  const bool training = script::field_boolean(L, 1, "training", true);
  const bool loss = script::field_boolean(L, 1, "loss", true);
  Recorder recorder(script::field_string(L, 1, "name", ""), training);

  std::vector<std::string> names;
  each(L, 1, "arg_names", [&](int at) { names.push_back(script::check_string(L, at)); });
  lua_getfield(L, 1, "forward");
  recorder.fallback_place = place_of_return(L, -1);
  const std::string place = short_form(recorder.fallback_place);
  lua_settop(L, 1);

  const Watch watch(L, recorder, training);
  lua_getfield(L, 1, "model");  // [spec, model]
  lua_getfield(L, 1, "args");
  const int args = lua_gettop(L);
  luaL_checktype(L, args, LUA_TTABLE);
  const auto n = static_cast<int>(script::field_int(L, args, "n", 0));
  luaL_checkstack(L, n + 8, "too many arguments");
  for (int i = 1; i <= n; ++i) {
    lua_rawgeti(L, args, i);
    const auto at = static_cast<size_t>(i) - 1;
    push_argument(L, -1, at < names.size() ? names[at] : std::to_string(i), recorder, !loss, 0);
    lua_remove(L, -2);
  }
  lua_remove(L, args);  // [spec, model, arguments…]
  each(L, 1, "parameters", [&](int at) {
    const std::string name = script::field_string(L, at, "name", "");
    lua_getfield(L, at, "tensor");
    const tensor::Box& box = tensor::check_box(L, -1);
    if (!box.parameter) fail(ErrorKind::model, "[trace.parameter] '{}' is not a parameter", name);
    recorder.add_parameter(box.parameter, name);
  });
  each(L, 1, "aliases", [&](int at) {
    recorder.add_alias(script::field_string(L, at, "alias", ""),
                       script::field_string(L, at, "name", ""));
  });

  lua_call(L, n, LUA_MULTRET);
  const int results = lua_gettop(L) - 1;
  std::vector<Nest> outputs;
  for (int i = 0; i < results; ++i)
    outputs.push_back(result_of(L, 2 + i, std::to_string(i + 1), recorder, 0));
  if (training && loss) check_loss(outputs, recorder, place);
  graph::Graph graph = recorder.finish(std::move(outputs));
  bind::push_graph(L, std::move(graph));
  const auto& anchors = recorder.anchors();
  lua_createtable(L, static_cast<int>(anchors.size()), 0);
  for (size_t i = 0; i < anchors.size(); ++i) {
    lua_createtable(L, 0, 2);
    script::push_string(L, anchors[i].first);
    lua_setfield(L, -2, "name");
    lua_pushinteger(L, anchors[i].second);
    lua_setfield(L, -2, "node");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_insert(L, -2);  // [anchors, graph]
  const auto& warnings = recorder.warnings();
  lua_createtable(L, static_cast<int>(warnings.size()), 0);
  for (size_t i = 0; i < warnings.size(); ++i) {
    script::push_string(L, warnings[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_pushvalue(L, -3);
  return 3;
}

Recorder* recorder_of(lua_State* L) {
  return dynamic_cast<Recorder*>(tensor::get_interceptor(L));
}

int refuse(lua_State* L) {  // upvalues: what, hint
  const std::string what = script::check_string(L, lua_upvalueindex(1));
  Recorder* recorder = recorder_of(L);
  NNS_CHECK(recorder != nullptr, "no trace is running");
  throw Error(
      ErrorKind::model,
      fmt::format("[trace.state] {} gives each run another value, and a graph has only one; {}",
                  what, describe(recorder->site_of(L))),
      script::check_string(L, lua_upvalueindex(2)));
}
// (what, hint) → a function that a traced model must not call, and that says so.
int refusal(lua_State* L) {
  luaL_checkstring(L, 1);
  luaL_checkstring(L, 2);
  lua_settop(L, 2);
  lua_pushcclosure(L, guarded<refuse>, 2);
  return 1;
}

// (fn, …) → what fn(…) returns; while tracing its calls form one region that backward recomputes.
int recompute(lua_State* L) {
  luaL_checkany(L, 1);
  struct Region {
    explicit Region(Recorder* r) : recorder(r) {
      if (recorder == nullptr) return;
      before = recorder->recompute_region;
      if (before < 0) recorder->recompute_region = recorder->next_region();
    }
    ~Region() {
      if (recorder != nullptr) recorder->recompute_region = before;
    }
    Recorder* recorder;
    int before = -1;
  } region(recorder_of(L));
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

int anchor(lua_State* L) {  // (name): marks this place of a traced model
  const std::string name = script::check_string(L, 1);
  if (Recorder* recorder = recorder_of(L)) recorder->add_anchor(name);
  return 0;
}

int tracing(lua_State* L) {  // () → whether a trace is running
  lua_pushboolean(L, recorder_of(L) != nullptr);
  return 1;
}

int open_module(lua_State* L) {
  lua_createtable(L, 0, 4);
  script::set_functions(L, {{"record", guarded<record>},
                            {"refusal", guarded<refusal>},
                            {"recompute", guarded<recompute>},
                            {"anchor", guarded<anchor>},
                            {"tracing", guarded<tracing>}});
  add_probe(L);
  add_own_ops(L);
  add_schemas(L);
  import::add_import(L);
  return 1;
}

}  // namespace

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.trace", guarded<open_module>);
}

}  // namespace nns::trace
