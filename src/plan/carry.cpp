// Weights that a graph reads in other stages than those they rest in.
#include <algorithm>

#include "base/error.h"
#include "plan/map.h"

namespace nns::plan {
namespace {

using graph::Graph;
using graph::Node;
using graph::Role;
using graph::ValueRef;

constexpr int kResult = -1;  // reader of a weight that is a result itself

// Weights by id, with the nodes that read them away from home.
std::map<int, std::vector<int>> away(const Plan& plan, const Graph& graph, const Resting& rests) {
  const auto mapped = map_stages(plan, graph, rests);
  std::map<int, std::vector<int>> out;
  for (const Node& node : graph.nodes)
    for (int id : graph::inputs_of(node)) {
      const graph::Value& value = graph.value({id});
      if (value.role != Role::parameter && value.role != Role::buffer) continue;
      const auto home = rests.find(value.name);
      if (home == rests.end() || home->second.contains(mapped[static_cast<size_t>(node.id)].stage))
        continue;
      // A buffer that this graph writes cannot be handed on: `fit` says so.
      const bool written = std::any_of(graph.buffer_updates.begin(), graph.buffer_updates.end(),
                                       [&](const auto& u) { return u.first == id; });
      if (!written) out[id].push_back(node.id);
    }
  std::vector<int> stages;
  for (const Mapped& m : mapped) stages.push_back(m.stage);
  for (int id : results_at_rest(graph)) {
    const auto home = rests.find(graph.value({id}).name);
    if (home != rests.end() && !home->second.contains(last_stage(graph, stages)))
      out[id].push_back(kResult);
  }
  return out;
}

void replace(Node& node, int from, int to) {
  for (graph::NamedArg& arg : node.args) {
    if (auto* ref = std::get_if<ValueRef>(&arg.value)) {
      if (ref->id == from) ref->id = to;
    } else if (auto* refs = std::get_if<std::vector<ValueRef>>(&arg.value)) {
      for (ValueRef& r : *refs)
        if (r.id == from) r.id = to;
    }
  }
}

void replace(graph::Nest& nest, int from, int to) {
  if (auto* ref = std::get_if<ValueRef>(&nest.node)) {
    if (ref->id == from) ref->id = to;
  } else if (auto* fields =
                 std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node)) {
    for (auto& [key, field] : *fields) replace(field, from, to);
  }
}

// A call at the beginning of the graph whose result is the weight, for some of its readers.
void hand_on(Graph& graph, int weight, const std::vector<int>& readers) {
  const graph::Value leaf = graph.value({weight});
  Node node;
  node.op = "aten::reshape";
  node.module = leaf.name;
  node.args = {{"self", ValueRef{weight}}, {"shape", leaf.type.shape}};
  node.outputs = {static_cast<int>(graph.values.size())};
  const int first = std::max(readers.front(), 0);
  if (first < static_cast<int>(graph.nodes.size()))
    node.loc = graph.nodes[static_cast<size_t>(first)].loc;
  for (int reader : readers)
    if (reader != kResult)
      replace(graph.nodes[static_cast<size_t>(reader)], weight, node.outputs[0]);
    else
      for (graph::Nest& nest : graph.outputs) replace(nest, weight, node.outputs[0]);
  for (graph::Value& value : graph.values)
    if (value.producer >= 0) ++value.producer;
  for (Node& other : graph.nodes) ++other.id;
  graph.values.push_back(
      {node.outputs[0], leaf.type, Role::activation, leaf.requires_grad, "", 0, {}});
  graph.nodes.insert(graph.nodes.begin(), std::move(node));
}

}  // namespace

std::optional<Graph> carry(const Plan& plan, const Graph& graph, const Resting& rests) {
  if (plan.stages == 1) return std::nullopt;
  std::optional<Graph> out;
  while (true) {
    const auto found = away(plan, out ? *out : graph, rests);
    if (found.empty()) return out;
    if (!out) out = graph;
    hand_on(*out, found.begin()->first, found.begin()->second);
  }
}

}  // namespace nns::plan
