// nnscaler._C.graph: graphs as userdata with text, JSON, hashes and queries.
#include "bind/graph.h"

#include "bind/bind.h"
#include "graph/difference.h"
#include "operators/kind.h"
#include "operators/record.h"
#include "operators/split.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using graph::Graph;
using graph::Node;
using graph::Value;
using graph::ValueRef;
using script::guarded;
using script::push_string;
using Handle = std::shared_ptr<const Graph>;

template <class List, class Push>
void push_list(lua_State* L, const List& list, Push push) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  int i = 0;
  for (const auto& item : list) {
    push(item);
    lua_rawseti(L, -2, ++i);
  }
}
void push_ids(lua_State* L, const std::vector<int>& ids) {
  push_list(L, ids, [L](int id) { lua_pushinteger(L, id); });
}
void set_string(lua_State* L, const char* key, std::string_view text) {
  push_string(L, text);
  lua_setfield(L, -2, key);
}
void set_int(lua_State* L, const char* key, int64_t value) {
  lua_pushinteger(L, static_cast<lua_Integer>(value));
  lua_setfield(L, -2, key);
}

// A plain value of an argument; a tensor is {value = id}, lists are lists, nil stays nil.
struct ArgPusher {
  lua_State* L;
  void operator()(std::monostate) const { lua_pushnil(L); }
  void operator()(ValueRef x) const {
    if (x.id < 0) return lua_pushnil(L);
    lua_createtable(L, 0, 1);
    set_int(L, "value", x.id);
  }
  void operator()(bool x) const { lua_pushboolean(L, x); }
  void operator()(int64_t x) const { lua_pushnumber(L, static_cast<double>(x)); }
  void operator()(double x) const { lua_pushnumber(L, x); }
  void operator()(const std::string& x) const { push_string(L, x); }
  void operator()(DType x) const { push_string(L, name_of(x)); }
  void operator()(const graph::Symbol& x) const { push_string(L, x.name); }
  template <class T>
  void operator()(const std::vector<T>& list) const {
    push_list(L, list, [this](const auto& x) { (*this)(T(x)); });
  }
};

// {id, name, shape, dtype, role, requires_grad, producer, data = bytes of a constant}
void push_value(lua_State* L, const Value& v) {
  lua_createtable(L, 0, 7);
  set_int(L, "id", v.id);
  set_string(L, "name", v.name);
  script::push_ints(L, v.type.shape);
  lua_setfield(L, -2, "shape");
  set_string(L, "dtype", name_of(v.type.dtype));
  set_string(L, "role", name_of(v.role));
  lua_pushboolean(L, v.requires_grad);
  lua_setfield(L, -2, "requires_grad");
  if (v.producer >= 0) set_int(L, "producer", v.producer);
  if (!v.data.empty()) set_string(L, "data", v.data);
}

// {id, op, kind, module, ordinal, file, line, source, inputs = ids, outputs = ids, args = {name =
// …}}
void push_node(lua_State* L, const Node& n) {
  lua_createtable(L, 0, 11);
  set_int(L, "id", n.id);
  set_string(L, "op", n.op);
  set_string(L, "kind", operators::name_of(operators::kind_of(n.op)));
  set_string(L, "module", n.module);
  set_int(L, "ordinal", n.ordinal);
  set_string(L, "file", n.loc.file);
  set_int(L, "line", n.loc.line);
  set_string(L, "source", n.source_text);
  push_ids(L, graph::inputs_of(n));
  lua_setfield(L, -2, "inputs");
  push_ids(L, n.outputs);
  lua_setfield(L, -2, "outputs");
  lua_createtable(L, 0, static_cast<int>(n.args.size()));
  for (const auto& arg : n.args) {
    push_string(L, arg.name);
    std::visit(ArgPusher{L}, arg.value);
    lua_rawset(L, -3);
  }
  lua_setfield(L, -2, "args");
}

int graph_text(lua_State* L) {  // ([locations = true])
  push_string(L, to_text(check_graph(L, 1), lua_isnoneornil(L, 2) || lua_toboolean(L, 2)));
  return 1;
}
int graph_json(lua_State* L) {
  push_string(L, to_json(check_graph(L, 1)));
  return 1;
}
int graph_hash(lua_State* L) {  // 16 hexadecimal digits
  push_string(L, hex(exact_hash(check_graph(L, 1))));
  return 1;
}
int graph_structure(lua_State* L) {
  push_string(L, hex(structure_hash(check_graph(L, 1))));
  return 1;
}
int graph_difference(lua_State* L) {  // (graph before, graph) → where they differ first, or nil
  const auto text = graph::difference(check_graph(L, 1), check_graph(L, 2));
  if (!text) return 0;
  push_string(L, *text);
  return 1;
}
int graph_name(lua_State* L) {
  push_string(L, check_graph(L, 1).name);
  return 1;
}
int graph_training(lua_State* L) {
  lua_pushboolean(L, check_graph(L, 1).training);
  return 1;
}
int graph_nodes(lua_State* L) {
  push_list(L, check_graph(L, 1).nodes, [L](const Node& n) { push_node(L, n); });
  return 1;
}
int graph_values(lua_State* L) {  // position in the list is id + 1
  push_list(L, check_graph(L, 1).values, [L](const Value& v) { push_value(L, v); });
  return 1;
}
template <std::vector<int> Graph::* Ids>
int graph_leaves(lua_State* L) {
  const Graph& g = check_graph(L, 1);
  push_list(L, g.*Ids, [&](int id) { push_value(L, g.value({id})); });
  return 1;
}

// A nested result: a tensor is {value = id}, a table a table (list entries keep their numbers).
void push_nest(lua_State* L, const graph::Nest& nest) {
  using Fields = std::vector<std::pair<std::string, graph::Nest>>;
  luaL_checkstack(L, 4, "results nested too deeply");
  const auto* fields = std::get_if<Fields>(&nest.node);
  if (fields == nullptr) {
    if (const auto* ref = std::get_if<ValueRef>(&nest.node)) return ArgPusher{L}(*ref);
    if (const auto* x = std::get_if<bool>(&nest.node)) return ArgPusher{L}(*x);
    if (const auto* x = std::get_if<double>(&nest.node)) return ArgPusher{L}(*x);
    if (const auto* x = std::get_if<std::string>(&nest.node)) return ArgPusher{L}(*x);
    return lua_pushnil(L);
  }
  lua_newtable(L);
  for (const auto& [key, value] : *fields) {
    push_string(L, key);
    if (lua_isnumber(L, -1)) {
      lua_pushnumber(L, lua_tonumber(L, -1));
      lua_remove(L, -2);
    }
    push_nest(L, value);
    lua_rawset(L, -3);
  }
}
int graph_outputs(lua_State* L) {  // what forward returns, in order
  push_list(L, check_graph(L, 1).outputs, [L](const graph::Nest& n) { push_nest(L, n); });
  return 1;
}
int graph_updates(lua_State* L) {  // { {buffer = id, value = id}, … }
  push_list(L, check_graph(L, 1).buffer_updates, [L](const auto& update) {
    lua_createtable(L, 0, 2);
    set_int(L, "buffer", update.first);
    set_int(L, "value", update.second);
  });
  return 1;
}

// (node id) → {annotation, splits = {{input, dim, identifier, length}}}: how the call may be split;
// inputs and dims count from 0, splits is empty when it cannot be.
int graph_splits(lua_State* L) {
  const Graph& g = check_graph(L, 1);
  const int64_t id = script::check_int(L, 2);
  if (id < 0 || id >= static_cast<int64_t>(g.nodes.size()))
    fail(ErrorKind::plan, "[graph.splits] node {}; expected 0 to {}", id,
         static_cast<int64_t>(g.nodes.size()) - 1);
  const operators::CallView call(g, g.nodes[static_cast<size_t>(id)]);
  const auto binding = operators::bind(call);
  lua_createtable(L, 0, 2);
  if (binding) set_string(L, "annotation", binding->text());
  push_list(L, binding ? binding->transform_space() : std::vector<annotate::Place>{},
            [&](const annotate::Place& place) {
              const std::string name = *binding->identifier(place.input, place.dim);
              lua_createtable(L, 0, 4);
              set_int(L, "input", place.input);
              set_int(L, "dim", place.dim);
              set_string(L, "identifier", name);
              set_int(L, "length", binding->length(name));
            });
  lua_setfield(L, -2, "splits");
  return 1;
}

// (node id) → floating point operations of the call; nothing where it has no record
int graph_flops(lua_State* L) {
  const Graph& g = check_graph(L, 1);
  const int64_t id = script::check_int(L, 2);
  if (id < 0 || id >= static_cast<int64_t>(g.nodes.size()))
    fail(ErrorKind::plan, "[graph.flops] node {}; expected 0 to {}", id,
         static_cast<int64_t>(g.nodes.size()) - 1);
  const operators::CallView call(g, g.nodes[static_cast<size_t>(id)]);
  if (operators::find(call.op()) == nullptr) return 0;
  lua_pushnumber(L, operators::flops(call));
  return 1;
}

int from_json_text(lua_State* L) {  // (text) → graph
  push_graph(L, graph::from_json(script::check_string(L, 1)));
  return 1;
}

// () → the operators of the system: list of {name, annotated, random, view, constant, mutates,
// examples}, the last a list of texts (operators/record.h)
int ops(lua_State* L) {
  auto rows = operators::all_records();
  std::erase_if(rows, [](const operators::Record* row) { return !row->infer; });  // communication
  push_list(L, rows, [L](const operators::Record* row) {
    lua_createtable(L, 0, 7);
    set_string(L, "name", row->name);
    push_list(L, row->examples, [L](const std::string& text) { push_string(L, text); });
    lua_setfield(L, -2, "examples");
    const auto set = [L](const char* key, bool value) {
      lua_pushboolean(L, value);
      lua_setfield(L, -2, key);
    };
    set("annotated", row->annotations.index() != 0);
    set("random", row->random);
    set("view", is_view(row->view));
    set("constant", row->constant);
    set("mutates", !row->mutates.empty());
  });
  return 1;
}

// (text) → the annotation in its plain form; an error says where it is wrong
int parse_annotation(lua_State* L) {
  push_string(L, annotate::Annotation::parse(script::check_string(L, 1)).text());
  return 1;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 4);
  script::set_functions(L, {{"from_json", guarded<from_json_text>},
                            {"ops", guarded<ops>},
                            {"parse_annotation", guarded<parse_annotation>}});
  return 1;
}

// The type is there from the start: other folders push graphs too.
void make_graph_type(lua_State* L) {
  script::make_type<Handle>(L, kGraphType,
                            {{"text", guarded<graph_text>},
                             {"json", guarded<graph_json>},
                             {"hash", guarded<graph_hash>},
                             {"structure", guarded<graph_structure>},
                             {"difference", guarded<graph_difference>},
                             {"name", guarded<graph_name>},
                             {"training", guarded<graph_training>},
                             {"nodes", guarded<graph_nodes>},
                             {"splits", guarded<graph_splits>},
                             {"flops", guarded<graph_flops>},
                             {"values", guarded<graph_values>},
                             {"outputs", guarded<graph_outputs>},
                             {"buffer_updates", guarded<graph_updates>},
                             {"inputs", guarded<graph_leaves<&Graph::inputs>>},
                             {"parameters", guarded<graph_leaves<&Graph::parameters>>},
                             {"buffers", guarded<graph_leaves<&Graph::buffers>>}});
  luaL_getmetatable(L, kGraphType);
  lua_pushcfunction(L, guarded<graph_text>);
  lua_setfield(L, -2, "__tostring");
  lua_pop(L, 1);
}

}  // namespace

void push_graph(lua_State* L, Handle graph) {
  script::push_object<Handle>(L, kGraphType, std::move(graph));
}
void push_graph(lua_State* L, Graph graph) {
  push_graph(L, std::make_shared<const Graph>(std::move(graph)));
}
const Graph& check_graph(lua_State* L, int index) {
  return *script::check_object<Handle>(L, index, kGraphType);
}
Handle share_graph(lua_State* L, int index) {
  return script::check_object<Handle>(L, index, kGraphType);
}

void open_graph(lua_State* L) {
  make_graph_type(L);
  script::preload(L, "nnscaler._C.graph", guarded<open>);
}

}  // namespace nns::bind
