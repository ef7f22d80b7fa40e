#include "graph/difference.h"

#include "base/error.h"

namespace nns::graph {
namespace {

// All that counts of a call, as the exact hash sees it; values by what makes them.
std::string told(const Graph& graph, const Node& node) {
  const auto value = [&](ValueRef ref) {
    if (ref.id < 0) return std::string("nil");
    const Value& v = graph.value(ref);
    return fmt::format("{} {}", v.name.empty() ? fmt::format("%{}", v.id) : v.name,
                       to_string(v.type));
  };
  std::string text = fmt::format("{} {} {} {} {}", node.op, node.module, node.context.grad_enabled,
                                 node.context.autocast, node.context.recompute_region);
  for (const NamedArg& a : node.args) {
    text += " " + a.name + "=";
    if (const auto* ref = std::get_if<ValueRef>(&a.value))
      text += value(*ref);
    else
      text += to_text(a.value);
  }
  for (int out : node.outputs) text += " -> " + value({out});
  return text;
}

std::string place(const Node& node) {
  return node.loc.line > 0 ? short_form(node.loc) : "the model";
}
std::string call(const Node& node) {
  return node.module.empty() ? node.op : node.op + " of " + node.module;
}

std::string leaf(const Value& v) {
  return fmt::format("{} {} {}", name_of(v.role), v.name, to_string(v.type));
}

// The first of the values that only one graph has, or nothing.
std::optional<std::string> leaves(const Graph& a, const Graph& b, std::vector<int> Graph::* list) {
  const auto &old = a.*list, &now = b.*list;
  for (size_t i = 0; i < std::max(old.size(), now.size()); ++i) {
    const std::string was = i < old.size() ? leaf(a.value({old[i]})) : "nothing";
    const std::string is = i < now.size() ? leaf(b.value({now[i]})) : "nothing";
    if (was != is) return fmt::format("{} in place of {}", is, was);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> difference(const Graph& before, const Graph& after) {
  for (size_t i = 0; i < std::max(before.nodes.size(), after.nodes.size()); ++i) {
    const Node* was = i < before.nodes.size() ? &before.nodes[i] : nullptr;
    const Node* is = i < after.nodes.size() ? &after.nodes[i] : nullptr;
    if (was != nullptr && is != nullptr && told(before, *was) == told(after, *is)) continue;
    if (is == nullptr) return fmt::format("{}: {} is gone", place(*was), call(*was));
    if (was == nullptr) return fmt::format("{}: {} is added", place(*is), call(*is));
    if (was->op != is->op || was->module != is->module)
      return fmt::format("{}: {} in place of {}", place(*is), call(*is), call(*was));
    return fmt::format("{}: {} has other arguments or results", place(*is), call(*is));
  }
  for (const auto list : {&Graph::inputs, &Graph::parameters, &Graph::buffers})
    if (auto text = leaves(before, after, list)) return text;
  if (exact_hash(before) != exact_hash(after)) return "what forward returns";
  return std::nullopt;
}

}  // namespace nns::graph
