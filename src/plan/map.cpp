// Stages by data flow.
#include "plan/map.h"

#include <algorithm>

#include "base/error.h"
#include "graph/nest.h"

namespace nns::plan {
namespace {

using graph::Graph;
using graph::Node;
using graph::Role;

bool rests(const graph::Value& value) {
  return value.role == Role::parameter || value.role == Role::buffer;
}

class Mapping {
 public:
  Mapping(const Plan& plan, const Graph& graph, const Resting& rests)
      : plan_(plan), graph_(graph), rests_(rests), latest_(graph.nodes.size()) {
    for (const OpPlan& op : plan.ops) {
      known_[op.key] = &op;
      calls_[{op.key.module, op.key.op}].push_back(&op);
    }
  }

  std::vector<Mapped> run() {
    find_latest();
    for (const Node& node : graph_.nodes) out_.push_back(place(node));
    return std::move(out_);
  }

 private:
  // Stages in which all weights that a node reads rest; all stages where there are none of both.
  std::set<int> homes(const Node& node) const {
    std::set<int> all;
    for (int s = 0; s < plan_.stages; ++s) all.insert(s);
    std::set<int> common = all;
    for (int id : graph::inputs_of(node))
      if (const std::set<int>* home = home_of(id))
        std::erase_if(common, [&](int s) { return !home->contains(s); });
    return common.empty() ? all : common;
  }

  const std::set<int>* home_of(int id) const {
    const graph::Value& value = graph_.value({id});
    if (!plan::rests(value)) return nullptr;
    const auto it = rests_.find(value.name);
    return it == rests_.end() ? nullptr : &it->second;
  }

  // The last stage of each node from which its readers can be where their weights rest.
  void find_latest() {
    std::fill(latest_.begin(), latest_.end(), plan_.stages - 1);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const std::set<int> home = homes(node);
      const auto above = home.upper_bound(latest_[n]);
      if (above != home.begin()) latest_[n] = *std::prev(above);
      for (int id : graph::inputs_of(node))
        if (const int producer = graph_.value({id}).producer; producer >= 0) {
          int& bound = latest_[static_cast<size_t>(producer)];
          bound = std::min(bound, latest_[n]);
        }
    }
  }

  Mapped place(const Node& node) const {
    int first = 0;
    bool made = false;
    for (int id : graph::inputs_of(node)) {
      if (const std::set<int>* home = home_of(id)) first = std::max(first, *home->begin());
      const int producer = graph_.value({id}).producer;
      if (producer < 0) continue;
      first = std::max(first, out_[static_cast<size_t>(producer)].stage);
      made = true;
    }
    const int last = std::max(first, latest_[static_cast<size_t>(node.id)]);
    std::set<int> home = homes(node);
    std::erase_if(home, [&](int s) { return s < first || s > last; });
    const auto fits = [&](int stage) {
      return home.empty() ? first <= stage && stage <= last : home.contains(stage);
    };
    const OpKey key{node.module, node.op, node.ordinal};
    if (const auto it = known_.find(key); it != known_.end() && fits(it->second->stage))
      return {it->second, true, it->second->stage};
    const OpPlan* near = made && !reads_weight(node) ? nullptr : nearest(key, fits);
    if (near != nullptr) return {near, false, near->stage};
    return {nullptr, false, home.empty() ? first : *home.begin()};
  }

  bool reads_weight(const Node& node) const {
    const auto inputs = graph::inputs_of(node);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](int id) { return plan::rests(graph_.value({id})); });
  }

  // Of the calls of the same operator in the same module whose stage fits, the last one before this
  // one, else the first.
  template <class F>
  const OpPlan* nearest(const OpKey& key, F fits) const {
    const auto it = calls_.find({key.module, key.op});
    const OpPlan* found = nullptr;
    if (it == calls_.end()) return found;
    for (const OpPlan* op : it->second)
      if (fits(op->stage) && (found == nullptr || op->key.ordinal <= key.ordinal)) found = op;
    return found;
  }

  const Plan& plan_;
  const Graph& graph_;
  const Resting& rests_;
  std::map<OpKey, const OpPlan*> known_;
  std::map<std::pair<std::string, std::string>, std::vector<const OpPlan*>> calls_;
  std::vector<int> latest_;  // by node
  std::vector<Mapped> out_;  // by node
};

}  // namespace

bool is_for(const Plan& plan, const Graph& graph) {
  return plan.ops.size() == graph.nodes.size() && plan.structure == graph::structure_hash(graph);
}

std::vector<Mapped> map_stages(const Plan& plan, const Graph& graph, const Resting& rests) {
  return Mapping(plan, graph, rests).run();
}

std::vector<int> results_at_rest(const Graph& graph) {
  std::set<int> out;
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) {
      if (rests(graph.value({id}))) out.insert(id);
    });
  return {out.begin(), out.end()};
}

int last_stage(const Graph& graph, const std::vector<int>& stages) {
  int last = 0;
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) {
      const int producer = graph.value({id}).producer;
      if (producer >= 0) last = std::max(last, stages[static_cast<size_t>(producer)]);
    });
  return last;
}

Resting resting(const Graph& graph, const std::vector<int>& stages) {
  Resting out;
  for (const Node& node : graph.nodes)
    for (int id : graph::inputs_of(node)) {
      const graph::Value& value = graph.value({id});
      if (rests(value)) out[value.name].insert(stages[static_cast<size_t>(node.id)]);
    }
  for (int id : results_at_rest(graph))
    out[graph.value({id}).name].insert(last_stage(graph, stages));
  for (const auto& [buffer, content] : graph.buffer_updates) {
    const graph::Value& value = graph.value({content});
    if (value.producer >= 0)
      out[graph.value({buffer}).name] = {stages[static_cast<size_t>(value.producer)]};
    else if (rests(value))  // a copy of a weight is made where that rests
      out[graph.value({buffer}).name] = {
          *out.try_emplace(value.name, std::set{0}).first->second.begin()};
  }
  for (const auto& value : graph.values)
    if (rests(value)) out.try_emplace(value.name, std::set<int>{0});
  return out;
}

}  // namespace nns::plan
