#include "lower/layouts.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/nest.h"
#include "lower/adapter.h"

namespace nns::lower {

using graph::Graph;
using graph::Nest;
using graph::Node;

namespace {

// Whether two layouts are one mesh on other devices.
bool same_mesh(const OperandUse& a, const OperandUse& b) {
  return a.layout.axes == b.layout.axes && partial_axes(a) == partial_axes(b);
}

}  // namespace

std::vector<int> partial_axes(const OperandUse& use) {
  std::vector<int> axes;
  for (size_t a = 0; a < use.partial.size(); ++a)
    if (use.partial[a] && use.layout.axes[a].size > 1) axes.push_back(static_cast<int>(a));
  return axes;
}

std::vector<std::vector<int>> groups_along(const Layout& layout, const std::vector<int>& axes) {
  std::map<std::vector<int>, std::vector<int>> groups;  // other coordinates → devices
  for (size_t p = 0; p < layout.devices.size(); ++p) {
    auto c = layout.coordinates(static_cast<int>(p));
    for (int a : axes) c[static_cast<size_t>(a)] = 0;
    groups[c].push_back(layout.devices[p]);
  }
  std::vector<std::vector<int>> out;
  for (auto& [c, devices] : groups) {
    std::sort(devices.begin(), devices.end());
    out.push_back(std::move(devices));
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool alike(const OperandUse& a, const OperandUse& b, const Shape& shape) {
  if (a.layout == b.layout && a.partial == b.partial) return true;
  return same_pieces(a.layout, b.layout, shape) &&
         groups_along(a.layout, partial_axes(a)) == groups_along(b.layout, partial_axes(b));
}

Layouts::Layouts(const Graph& graph, std::shared_ptr<const plan::Plan> plan,
                 const plan::Resting* rests)
    : graph_(graph), plan_(std::move(plan)), uses_(graph.values.size()) {
  if (!plan_) return;
  fitted_ = plan::fit(*plan_, graph, rests);
  check_devices();
  for (const Node& node : graph.nodes)
    placements_.push_back(place(graph, node, fitted_.ops[static_cast<size_t>(node.id)]));
  for (const Nest& nest : graph_.outputs)
    for_each_value(nest, [&](int id) { last_stage_ = std::max(last_stage_, producer_stage(id)); });
  find_uses();
  for (const auto& value : graph.values)
    for (int other : other_stages(value.id))
      crossings_.emplace(std::pair(value.id, other), static_cast<int>(crossings_.size()));
}

void Layouts::check_devices() const {
  for (const Node& node : graph_.nodes) {
    const plan::OpPlan& op = fitted_.ops[static_cast<size_t>(node.id)];
    const size_t devices = std::set<int>(op.devices.begin(), op.devices.end()).size();
    if (devices != devices_of(op.stage).size())
      fail(ErrorKind::plan,
           "[lower.place] {} runs on {} of the {} devices of its stage; expected a part on each",
           plan::to_string(op.key), devices, devices_of(op.stage).size());
  }
}

const std::vector<int>& Layouts::devices_of(int stage) const {
  return plan_ ? plan_->stage_devices.at(static_cast<size_t>(stage)) : alone_;
}

void Layouts::find_uses() {
  for (const Node& node : graph_.nodes) {
    const auto inputs = graph::inputs_of(node);
    for (size_t i = 0; i < inputs.size(); ++i)
      uses_[static_cast<size_t>(inputs[i])].push_back({stage_of(node), placed(node)->inputs[i]});
  }
  // Results are whole in the stage that makes the last of them: values move forward only.
  for (const Nest& nest : graph_.outputs)
    for_each_value(nest, [&](int id) {
      uses_[static_cast<size_t>(id)].push_back({last_stage_, whole(last_stage_)});
    });
}

Layout Layouts::made(const Node& node, size_t i) const {
  return plan_ ? placed(node)->outputs[i] : Layout::replicated(alone_);
}

bool Layouts::rests_in(int value, int stage) const {
  if (!plan_) return true;
  return fitted_.rests.at(graph_.value({value}).name).contains(stage);
}

OperandUse Layouts::home_in(int value, int stage) const {
  const Shape& shape = graph_.value({value}).type.shape;
  const OperandUse* first = nullptr;
  for (const Use& u : uses(value)) {
    if (u.stage != stage) continue;
    if (u.use.layout.has_value_axis()) return whole(stage);
    if (first == nullptr)
      first = &u.use;
    else if (!alike(*first, u.use, shape))
      return whole(stage);
  }
  return first != nullptr ? *first : whole(stage);
}

OperandUse Layouts::home(int value, int stage) const {
  if (!plan_) return whole(stage);
  OperandUse mine = home_in(value, stage);
  // Stages that share a weight cut it alike, or not at all.
  std::set<int> others;
  for (const Use& u : uses(value))
    if (u.stage != stage && others.insert(u.stage).second &&
        !same_mesh(home_in(value, u.stage), mine))
      return whole(stage);
  return mine;
}

std::vector<std::vector<int>> Layouts::addend_groups(int value, int stage,
                                                     const Piece& piece) const {
  const OperandUse rest = home(value, stage);
  const Shape& shape = graph_.value({value}).type.shape;
  std::vector<std::vector<int>> out;
  for (auto& group : groups_along(rest.layout, partial_axes(rest)))
    if (rest.layout.piece(shape, group[0]).box == piece.box) out.push_back(std::move(group));
  return out;
}

int Layouts::producer_stage(int value) const {
  const int producer = graph_.value({value}).producer;
  return producer < 0 ? -1 : stage_of(graph_.nodes[static_cast<size_t>(producer)]);
}

std::vector<int> Layouts::other_stages(int value) const {
  const int from = producer_stage(value);
  std::set<int> stages;
  if (from >= 0)
    for (const Use& u : uses(value))
      if (u.stage != from) stages.insert(u.stage);
  return {stages.begin(), stages.end()};
}

Layout Layouts::departure(int value) const {
  const auto& v = graph_.value({value});
  const Node& node = graph_.nodes[static_cast<size_t>(v.producer)];
  const auto at = std::find(node.outputs.begin(), node.outputs.end(), value);
  return summed(made(node, static_cast<size_t>(at - node.outputs.begin())));
}

Layout Layouts::arrival(int value, int stage) const {
  return home_in(value, stage).layout;
}

int64_t Layouts::tag(int value, int stage, bool gradient) const {
  return crossings_.at({value, stage}) * 2 + (gradient ? 1 : 0);
}

std::vector<int> Layouts::arrivals(int stage) const {
  std::vector<int> out;
  if (!plan_) return out;
  for (const auto& value : graph_.values) {
    const auto others = other_stages(value.id);
    if (std::find(others.begin(), others.end(), stage) != others.end()) out.push_back(value.id);
  }
  return out;
}

}  // namespace nns::lower
