// The readable form of a graph, and small queries of nodes.
#include <cmath>

#include "base/error.h"
#include "graph/graph.h"

namespace nns::graph {
namespace {

using Out = fmt::memory_buffer;

template <class... Args>
void put(Out& out, fmt::format_string<Args...> f, Args&&... args) {
  fmt::format_to(std::back_inserter(out), f, std::forward<Args>(args)...);
}

void put_string(Out& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      put(out, "\\{}", c);
    else if (u < 0x20 || u == 0x7f)
      put(out, "\\x{:02x}", u);
    else
      out.push_back(c);
  }
  out.push_back('"');
}

// Shortest digits that read back as the same number, always recognisable as real.
void put_real(Out& out, double x) {
  const std::string digits = fmt::format("{}", x);
  const bool bare = digits.find_first_not_of("-0123456789") == std::string::npos;
  put(out, "{}{}", digits, bare ? ".0" : "");
}

void put_ref(Out& out, ValueRef ref) {
  if (ref.id < 0)
    put(out, "nil");
  else
    put(out, "%{}", ref.id);
}

template <class List, class Put>
void put_list(Out& out, const List& list, Put put_one) {
  out.push_back('[');
  bool first = true;
  for (const auto& item : list) {
    if (!first) put(out, ", ");
    first = false;
    put_one(item);
  }
  out.push_back(']');
}

struct ArgWriter {
  Out& out;
  void operator()(std::monostate) const { put(out, "nil"); }
  void operator()(ValueRef ref) const { put_ref(out, ref); }
  void operator()(bool x) const { put(out, "{}", x); }
  void operator()(int64_t x) const { put(out, "{}", x); }
  void operator()(double x) const { put_real(out, x); }
  void operator()(const std::string& x) const { put_string(out, x); }
  void operator()(DType x) const { put(out, "{}", name_of(x)); }
  void operator()(const Symbol& x) const { put(out, "{}", x.name); }
  template <class T>
  void operator()(const std::vector<T>& list) const {
    put_list(out, list, [this](const auto& x) { (*this)(T(x)); });
  }
};

void put_nest(Out& out, const Nest& nest) {
  struct Writer {
    Out& out;
    void operator()(std::monostate) const { put(out, "nil"); }
    void operator()(ValueRef ref) const { put_ref(out, ref); }
    void operator()(bool x) const { put(out, "{}", x); }
    void operator()(double x) const { put(out, "{}", x); }
    void operator()(const std::string& x) const { put_string(out, x); }
    void operator()(const std::vector<std::pair<std::string, Nest>>& table) const {
      put(out, "{{");
      for (size_t i = 0; i < table.size(); ++i) {
        put(out, "{}", i == 0 ? " " : ", ");
        put_string(out, table[i].first);
        put(out, " = ");
        put_nest(out, table[i].second);
      }
      put(out, "{}", table.empty() ? "}" : " }");
    }
  };
  std::visit(Writer{out}, nest.node);
}

void put_leaf(Out& out, const Value& value) {
  put(out, "  {:<9} %{} ", name_of(value.role), value.id);
  put_string(out, value.name);
  put(out, ": {}{}", to_string(value.type), value.requires_grad ? " grad" : "");
  if (!value.data.empty()) put(out, " data={}", hex(hash_bytes(value.data)));
  put(out, "\n");
}

void put_node(Out& out, const Graph& graph, const Node& node, bool locations) {
  put(out, "  ");
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Value& value = graph.values.at(static_cast<size_t>(node.outputs[i]));
    put(out, "{}%{}: {}{}{}", i == 0 ? "" : ", ", value.id, to_string(value.type),
        value.requires_grad ? " grad" : "", value.role == Role::constant ? " constant" : "");
  }
  put(out, "{}{}(", node.outputs.empty() ? "" : " = ", node.op);
  for (size_t i = 0; i < node.args.size(); ++i) {
    put(out, "{}{}=", i == 0 ? "" : ", ", node.args[i].name);
    std::visit(ArgWriter{out}, node.args[i].value);
  }
  put(out, ")  -- ");
  put(out, "{}#{}", node.module.empty() ? "." : node.module, node.ordinal);
  if (!node.context.grad_enabled) put(out, " no_grad");
  if (!node.context.autocast.empty()) put(out, " autocast={}", node.context.autocast);
  if (node.context.recompute_region >= 0) put(out, " recompute={}", node.context.recompute_region);
  if (locations && node.loc.line > 0) put(out, " {}", short_form(node.loc));
  put(out, "\n");
}

}  // namespace

std::string to_text(const Arg& arg) {
  Out out;
  std::visit(ArgWriter{out}, arg);
  return fmt::to_string(out);
}

std::string to_text(const Nest& nest) {
  Out out;
  put_nest(out, nest);
  return fmt::to_string(out);
}

std::string_view name_of(Role role) {
  switch (role) {
    case Role::input:
      return "input";
    case Role::parameter:
      return "parameter";
    case Role::buffer:
      return "buffer";
    case Role::activation:
      return "activation";
    case Role::constant:
      return "constant";
  }
  return "?";
}

const Arg* Node::find(std::string_view name) const {
  for (const NamedArg& arg : args)
    if (arg.name == name) return &arg.value;
  return nullptr;
}

std::vector<int> inputs_of(const Node& node) {
  std::vector<int> ids;
  const auto add = [&ids](ValueRef ref) {
    if (ref.id >= 0) ids.push_back(ref.id);
  };
  for (const NamedArg& arg : node.args) {
    if (const auto* ref = std::get_if<ValueRef>(&arg.value)) add(*ref);
    if (const auto* list = std::get_if<std::vector<ValueRef>>(&arg.value))
      for (const ValueRef ref : *list) add(ref);
  }
  return ids;
}

std::string to_text(const Graph& graph, bool locations) {
  Out out;
  put(out, "graph ");
  put_string(out, graph.name);
  put(out, " {}\n", graph.training ? "training" : "evaluation");
  for (const auto* ids : {&graph.inputs, &graph.parameters, &graph.buffers})
    for (const int id : *ids) put_leaf(out, graph.values.at(static_cast<size_t>(id)));
  for (const Value& value : graph.values)
    if (value.role == Role::constant && value.producer < 0) put_leaf(out, value);
  for (const auto& [alias, name] : graph.aliases) {
    put(out, "  alias     ");
    put_string(out, alias);
    put(out, " = ");
    put_string(out, name);
    put(out, "\n");
  }
  for (const Node& node : graph.nodes) put_node(out, graph, node, locations);
  for (const auto& [buffer, value] : graph.buffer_updates)
    put(out, "  update    %{} = %{}\n", buffer, value);
  for (const Nest& output : graph.outputs) {
    put(out, "  output    ");
    put_nest(out, output);
    put(out, "\n");
  }
  return fmt::to_string(out);
}

}  // namespace nns::graph
