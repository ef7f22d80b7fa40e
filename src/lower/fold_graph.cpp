// A graph and its plan with fewer of the layers that are equal.
#include <set>

#include "base/error.h"
#include "lower/fold.h"

namespace nns::lower {

using graph::Graph;
using graph::Node;
using graph::ValueRef;

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

template <class F>
void for_each_ref(graph::Arg& arg, F visit) {
  if (auto* one = std::get_if<ValueRef>(&arg)) {
    visit(*one);
  } else if (auto* list = std::get_if<std::vector<ValueRef>>(&arg)) {
    for (ValueRef& ref : *list) visit(ref);
  }
}

void rename(graph::Nest& nest, const std::vector<int>& ids) {
  if (auto* ref = std::get_if<ValueRef>(&nest.node)) {
    if (ref->id >= 0) ref->id = ids[at(ref->id)];
  } else if (auto* fields =
                 std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node)) {
    for (auto& [key, field] : *fields) rename(field, ids);
  }
}

}  // namespace

// The graph and its plan with so many blocks of each row: the first ones and the last.
// `bare`: the plan without its calls.
Fold::Folded Fold::fold(const plan::Plan& plan, const plan::Plan& bare,
                        const std::vector<Row>& rows, const std::vector<size_t>& keep) const {
  const Graph& graph = *graph_;
  std::vector<bool> gone(graph.nodes.size(), false), gone_values(graph.values.size(), false);
  std::vector<int> ids(graph.values.size(), -1);
  std::set<std::string> gone_names;
  std::vector<std::pair<int, int>> handed_on;  // value of the last block gone, that in its place
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t begin = rows[r].first + keep[r] - 1, end = rows[r].first + rows[r].count - 1;
    if (begin >= end) continue;
    const Block &before = blocks_[begin - 1], &last = blocks_[end - 1];
    for (size_t b = begin; b < end; ++b) {
      for (size_t n = blocks_[b].first; n < blocks_[b].last; ++n) gone[n] = true;
      for (int leaf : blocks_[b].leaves) {
        gone_values[at(leaf)] = true;
        gone_names.insert(graph.value({leaf}).name);
      }
    }
    for (size_t i = 0; i < last.last - last.first; ++i) {
      const auto &there = graph.nodes[last.first + i].outputs,
                 &here = graph.nodes[before.first + i].outputs;
      for (size_t k = 0; k < there.size(); ++k) handed_on.emplace_back(there[k], here[k]);
    }
  }
  auto made = std::make_shared<Graph>();
  made->name = graph.name;
  made->training = graph.training;
  const auto keeps = [&](int id) {
    const graph::Value& value = graph.value({id});
    if (value.producer >= 0) return !gone[at(value.producer)];
    return !gone_values[at(id)];
  };
  std::vector<int> new_node(graph.nodes.size(), -1);
  Folded out;
  for (const Node& node : graph.nodes)
    if (!gone[at(node.id)]) {
      new_node[at(node.id)] = static_cast<int>(out.nodes.size());
      out.nodes.push_back(node.id);
    }
  for (const graph::Value& value : graph.values) {
    if (!keeps(value.id)) continue;
    ids[at(value.id)] = static_cast<int>(made->values.size());
    made->values.push_back(value);
    made->values.back().id = ids[at(value.id)];
    if (value.producer >= 0) made->values.back().producer = new_node[at(value.producer)];
  }
  for (const auto& [there, here] : handed_on) ids[at(there)] = ids[at(here)];
  for (int id : out.nodes) {
    Node node = graph.nodes[at(id)];
    node.id = new_node[at(id)];
    for (graph::NamedArg& arg : node.args)
      for_each_ref(arg.value, [&](ValueRef& ref) {
        if (ref.id >= 0) ref.id = ids[at(ref.id)];
      });
    for (int& value : node.outputs) value = ids[at(value)];
    made->nodes.push_back(std::move(node));
  }
  const auto take = [&](const std::vector<int>& from, std::vector<int>& to) {
    for (int id : from)
      if (keeps(id)) to.push_back(ids[at(id)]);
  };
  take(graph.inputs, made->inputs);
  take(graph.parameters, made->parameters);
  take(graph.buffers, made->buffers);
  made->outputs = graph.outputs;
  for (graph::Nest& nest : made->outputs) rename(nest, ids);
  for (const auto& [buffer, value] : graph.buffer_updates)
    if (keeps(buffer)) made->buffer_updates.emplace_back(ids[at(buffer)], ids[at(value)]);
  for (const auto& alias : graph.aliases)
    if (!gone_names.contains(alias.second)) made->aliases.push_back(alias);

  auto cut = std::make_shared<plan::Plan>(bare);
  for (int id : out.nodes) cut->ops.push_back(plan.ops[at(id)]);
  std::erase_if(cut->zero.levels,
                [&](const auto& level) { return gone_names.contains(level.first); });
  std::erase_if(cut->zero.whole, [&](const auto& name) { return gone_names.contains(name); });
  cut->structure = graph::structure_hash(*made);
  out.graph = std::move(made);
  out.plan = std::move(cut);
  return out;
}

}  // namespace nns::lower
