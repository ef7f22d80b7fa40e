// What must hold in every graph: one rule a function, run in order. Producers of graphs call
// `verify`; the JSON reader uses `find_fault` to refuse a damaged file.
#include <map>
#include <set>

#include "base/error.h"
#include "graph/graph.h"

namespace nns::graph {
namespace {

using Fault = std::optional<std::string>;

bool known(const Graph& g, int id) {
  return id >= 0 && id < static_cast<int>(g.values.size());
}
const Value& at(const Graph& g, int id) {
  return g.values[static_cast<size_t>(id)];
}

std::string label(const Node& n) {
  return fmt::format("node {} ({})", n.id, n.op);
}

Fault ids_count_from_zero(const Graph& g) {
  for (size_t i = 0; i < g.values.size(); ++i)
    if (g.values[i].id != static_cast<int>(i))
      return fmt::format("value at position {} has id {}", i, g.values[i].id);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    if (g.nodes[i].id != static_cast<int>(i))
      return fmt::format("node at position {} has id {}", i, g.nodes[i].id);
  return {};
}

Fault shapes_are_sizes(const Graph& g) {
  for (const Value& v : g.values)
    for (const int64_t size : v.type.shape)
      if (size < 0) return fmt::format("value %{} has shape {}", v.id, to_string(v.type.shape));
  return {};
}

Fault data_fits_the_type(const Graph& g) {
  for (const Value& v : g.values) {
    if (v.data.empty()) continue;
    if (v.role != Role::constant || v.producer >= 0)
      return fmt::format("value %{} has data but is not a constant leaf", v.id);
    if (static_cast<int64_t>(v.data.size()) != bytes_of(v.type))
      return fmt::format("constant %{} has {} bytes; its type {} takes {}", v.id, v.data.size(),
                         to_string(v.type), bytes_of(v.type));
  }
  return {};
}

Fault leaves_are_listed(const Graph& g) {
  std::set<int> listed;
  const std::pair<const std::vector<int>*, Role> lists[] = {
      {&g.inputs, Role::input}, {&g.parameters, Role::parameter}, {&g.buffers, Role::buffer}};
  for (const auto& [ids, role] : lists)
    for (const int id : *ids) {
      if (!known(g, id)) return fmt::format("{} list names value %{}", name_of(role), id);
      if (at(g, id).role != role)
        return fmt::format("value %{} is listed as {} but has role {}", id, name_of(role),
                           name_of(at(g, id).role));
      if (!listed.insert(id).second) return fmt::format("value %{} is listed twice", id);
      if (at(g, id).producer >= 0) return fmt::format("{} %{} has a producer", name_of(role), id);
    }
  for (const Value& v : g.values) {
    const bool leaf = v.role == Role::input || v.role == Role::parameter || v.role == Role::buffer;
    if (leaf && !listed.contains(v.id))
      return fmt::format("{} %{} is not in its list", name_of(v.role), v.id);
  }
  return {};
}

Fault names_are_unique(const Graph& g) {
  std::set<std::string> stored, fields;
  for (const auto* ids : {&g.parameters, &g.buffers})
    for (const int id : *ids) {
      if (at(g, id).name.empty())
        return fmt::format("{} %{} has no name", name_of(at(g, id).role), id);
      if (!stored.insert(at(g, id).name).second)
        return fmt::format("two tensors are named '{}'", at(g, id).name);
    }
  for (const int id : g.inputs)
    if (!fields.insert(at(g, id).name).second)
      return fmt::format("two inputs are named '{}'", at(g, id).name);
  for (const auto& [alias, name] : g.aliases) {
    if (!stored.contains(name)) return fmt::format("alias '{}' of unknown '{}'", alias, name);
    if (stored.contains(alias)) return fmt::format("alias '{}' is itself stored", alias);
  }
  return {};
}

Fault used_after_definition(const Graph& g) {
  std::vector<bool> defined(g.values.size(), false);
  for (const Value& v : g.values) defined[static_cast<size_t>(v.id)] = v.producer < 0;
  for (const Node& n : g.nodes) {
    for (const int id : inputs_of(n)) {
      if (!known(g, id)) return fmt::format("{} reads value %{}, which is not there", label(n), id);
      if (!defined[static_cast<size_t>(id)])
        return fmt::format("{} reads value %{} before its definition", label(n), id);
    }
    for (const int id : n.outputs) {
      if (!known(g, id))
        return fmt::format("{} defines value %{}, which is not there", label(n), id);
      if (at(g, id).producer != n.id)
        return fmt::format("{} defines value %{}, whose producer is {}", label(n), id,
                           at(g, id).producer);
      if (defined[static_cast<size_t>(id)])
        return fmt::format("{} defines value %{} a second time", label(n), id);
      defined[static_cast<size_t>(id)] = true;
    }
  }
  for (const Value& v : g.values) {
    if (!defined[static_cast<size_t>(v.id)])
      return fmt::format("value %{} claims producer {}, which does not define it", v.id,
                         v.producer);
    if (v.role == Role::activation && v.producer < 0)
      return fmt::format("activation %{} has no producer", v.id);
  }
  return {};
}

Fault arguments_are_named_once(const Graph& g) {
  for (const Node& n : g.nodes) {
    if (n.op.find("::") == std::string::npos) return fmt::format("{} has no namespace", label(n));
    std::set<std::string_view> names;
    for (const NamedArg& a : n.args)
      if (a.name.empty() || !names.insert(a.name).second)
        return fmt::format("{} has argument '{}' twice or without name", label(n), a.name);
  }
  return {};
}

Fault ordinals_count_calls(const Graph& g) {
  std::map<std::pair<std::string_view, std::string_view>, int> calls;
  for (const Node& n : g.nodes) {
    const int expected = calls[{n.module, n.op}]++;
    if (n.ordinal != expected)
      return fmt::format("{} in '{}' has ordinal {}; expected {}", label(n), n.module, n.ordinal,
                         expected);
  }
  return {};
}

Fault nest_is_known(const Graph& g, const Nest& nest) {
  if (const auto* ref = std::get_if<ValueRef>(&nest.node))
    if (!known(g, ref->id))
      return fmt::format("output names value %{}, which is not there", ref->id);
  if (const auto* table = std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node))
    for (const auto& [key, item] : *table)
      if (auto fault = nest_is_known(g, item)) return fault;
  return {};
}

Fault results_are_known(const Graph& g) {
  for (const Nest& output : g.outputs)
    if (auto fault = nest_is_known(g, output)) return fault;
  std::set<int> updated;
  for (const auto& [buffer, value] : g.buffer_updates) {
    if (!known(g, buffer) || at(g, buffer).role != Role::buffer)
      return fmt::format("update of value %{}, which is not a buffer", buffer);
    if (!updated.insert(buffer).second) return fmt::format("buffer %{} is updated twice", buffer);
    if (!known(g, value)) return fmt::format("buffer %{} takes unknown value %{}", buffer, value);
    if (at(g, value).type != at(g, buffer).type)
      return fmt::format("buffer %{} of type {} takes %{} of type {}", buffer,
                         to_string(at(g, buffer).type), value, to_string(at(g, value).type));
  }
  return {};
}

}  // namespace

Fault find_fault(const Graph& graph) {
  for (const auto rule : {ids_count_from_zero, shapes_are_sizes, data_fits_the_type,
                          leaves_are_listed, used_after_definition, names_are_unique,
                          arguments_are_named_once, ordinals_count_calls, results_are_known})
    if (auto fault = rule(graph)) return fault;
  return {};
}

void verify(const Graph& graph) {
  if (const auto fault = find_fault(graph))
    fail(ErrorKind::internal, "[graph.verify] {}: {}", graph.name, *fault);
}

}  // namespace nns::graph
