#include "lower/distribution.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/nest.h"

namespace nns::lower {
namespace {

using graph::Graph;
using graph::Nest;
using graph::Node;

// The devices of a layout in groups that differ along the given axes only.
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
  return same_pieces(a.layout, b.layout, shape) &&
         groups_along(a.layout, Distribution::partial_axes(a)) ==
             groups_along(b.layout, Distribution::partial_axes(b));
}

// Whether two layouts are one mesh on other devices.
bool same_mesh(const OperandUse& a, const OperandUse& b) {
  return a.layout.axes == b.layout.axes &&
         Distribution::partial_axes(a) == Distribution::partial_axes(b);
}

}  // namespace

std::vector<int> Distribution::partial_axes(const OperandUse& use) {
  std::vector<int> axes;
  for (size_t a = 0; a < use.partial.size(); ++a)
    if (use.partial[a] && use.layout.axes[a].size > 1) axes.push_back(static_cast<int>(a));
  return axes;
}

Distribution::Distribution(const Graph& graph, std::shared_ptr<const plan::Plan> plan, int rank,
                           int stage, std::shared_ptr<const Homes> homes)
    : graph_(graph),
      plan_(std::move(plan)),
      stage_(stage),
      homes_(std::move(homes)),
      placements_(graph.nodes.size()) {
  uses_.resize(graph.values.size());
  if (!plan_) return;
  device_ = rank % plan_->plan_ngpus;
  first_rank_ = rank - device_;
  NNS_CHECK(stage >= 0 && stage < plan_->stages, "stage {} of {}", stage, plan_->stages);
  fitted_ = plan::fit(*plan_, graph, homes_ ? &homes_->rests : nullptr);
  for (const Node& node : graph.nodes) {
    const plan::OpPlan& op = fitted_.ops[static_cast<size_t>(node.id)];
    const size_t devices = std::set<int>(op.devices.begin(), op.devices.end()).size();
    if (devices != devices_of(op.stage).size())
      fail(ErrorKind::plan,
           "[lower.place] {} runs on {} of the {} devices of its stage; expected a part on each",
           plan::to_string(op.key), devices, devices_of(op.stage).size());
  }
  find_last_stage();
  find_uses();
  for (const auto& value : graph.values)
    for (int other : other_stages(value.id))
      crossings_.emplace(std::pair(value.id, other), static_cast<int>(crossings_.size()));
}

const std::vector<int>& Distribution::devices_of(int stage) const {
  return plan_ ? plan_->stage_devices.at(static_cast<size_t>(stage)) : alone_;
}

void Distribution::find_last_stage() {
  for (const Nest& nest : graph_.outputs)
    for_each_value(nest, [&](int id) { last_stage_ = std::max(last_stage_, producer_stage(id)); });
}

void Distribution::find_uses() {
  for (const Node& node : graph_.nodes) {
    const auto inputs = graph::inputs_of(node);
    for (size_t i = 0; i < inputs.size(); ++i)
      uses_[static_cast<size_t>(inputs[i])].push_back({stage_of(node), placement(node).inputs[i]});
  }
  // Results are whole in the stage that makes the last of them: values move forward only.
  for (const Nest& nest : graph_.outputs)
    for_each_value(nest, [&](int id) {
      uses_[static_cast<size_t>(id)].push_back(
          {last_stage_, {Layout::replicated(devices_of(last_stage_)), {false}}});
    });
}

int Distribution::recompute_region(const Node& node) const {
  const int group = plan_ ? fitted_.ops[static_cast<size_t>(node.id)].recompute : -1;
  if (group >= 0) return 2 * group + 1;
  const int region = node.context.recompute_region;
  return region >= 0 ? 2 * region : -1;
}

const NodePlacement& Distribution::placement(const Node& node) const {
  auto& known = placements_[static_cast<size_t>(node.id)];
  if (!known) {
    const plan::OpPlan& op = fitted_.ops[static_cast<size_t>(node.id)];
    known = place(graph_, node, op, op.stage == stage_ ? device_ : op.devices[0]);
  }
  return *known;
}

const NodePlacement* Distribution::placed(const Node& node) const {
  return plan_ ? &placement(node) : nullptr;
}

const std::vector<Distribution::Use>& Distribution::uses(int value) const {
  return uses_[static_cast<size_t>(value)];
}

bool Distribution::is_used_here(int value) const {
  if (!plan_) return true;
  return fitted_.rests.at(graph_.value({value}).name).contains(stage_);
}

OperandUse Distribution::home_in(int value, int stage) const {
  const OperandUse whole{Layout::replicated(devices_of(stage)), {false}};
  const Shape& shape = graph_.value({value}).type.shape;
  const OperandUse* first = nullptr;
  for (const Use& u : uses(value)) {
    if (u.stage != stage) continue;
    if (u.use.layout.has_value_axis()) return whole;
    if (first == nullptr)
      first = &u.use;
    else if (!alike(*first, u.use, shape))
      return whole;
  }
  return first != nullptr ? *first : whole;
}

const Home* Distribution::given(int value) const {
  if (!homes_) return nullptr;
  const auto it = homes_->own.find(graph_.value({value}).name);
  return it == homes_->own.end() ? nullptr : &it->second;
}

OperandUse Distribution::home(int value) const {
  if (!plan_) return whole();
  if (const Home* known = given(value)) return known->use;
  const OperandUse mine = home_in(value, stage_);
  // Stages that share a weight cut it alike, or not at all.
  for (const Use& u : uses(value))
    if (u.stage != stage_ && !same_mesh(home_in(value, u.stage), mine)) return whole();
  return mine;
}

std::vector<std::vector<int>> Distribution::addend_groups(int value, int stage,
                                                          const Piece& piece) const {
  OperandUse rest = home_in(value, stage);
  for (const Use& u : uses(value))
    if (u.stage != stage && !same_mesh(home_in(value, u.stage), rest))
      rest = {Layout::replicated(devices_of(stage)), {false}};
  const Shape& shape = graph_.value({value}).type.shape;
  std::vector<std::vector<int>> out;
  for (auto& group : groups_along(rest.layout, partial_axes(rest)))
    if (rest.layout.piece(shape, group[0]).box == piece.box) out.push_back(std::move(group));
  return out;
}

std::vector<Shape> Distribution::addends(int value, std::set<int>* holders) const {
  const Shape& shape = graph_.value({value}).type.shape;
  const Piece mine = home(value).layout.piece(shape, device_);
  std::set<int> others;
  for (const Use& u : uses(value))
    if (u.stage != stage_) others.insert(u.stage);
  std::vector<int> stages{stage_};
  stages.insert(stages.end(), others.begin(), others.end());
  const auto here = addend_groups(value, stage_, mine);
  size_t which = 0;
  while (std::find(here[which].begin(), here[which].end(), device_) == here[which].end()) ++which;
  std::vector<Shape> out;
  for (int stage : stages) {
    const auto groups = addend_groups(value, stage, mine);
    if (groups.size() != here.size())
      throw Error(
          ErrorKind::plan,
          fmt::format("[lower.share] {} is held {} times in stage {} and {} times in stage {}; "
                      "expected as many",
                      graph_.value({value}).name, here.size(), stage_, groups.size(), stage),
          "give the stages that share a weight equally many devices");
    for (const auto& group : groups) holders->insert(group.begin(), group.end());
    Shape ranks;
    for (int u = 0; u < plan_->units(); ++u)
      for (int device : groups[which]) ranks.push_back(device + u * plan_->plan_ngpus);
    out.push_back(std::move(ranks));
  }
  return out;
}

Share Distribution::share(int value) const {
  if (const Home* known = given(value)) return known->share;
  Share share;
  std::set<int> holders;
  const auto groups = addends(value, &holders);
  share.holders = static_cast<int>(holders.size()) * plan_->units();
  std::set<int> reduce;
  if (const auto cut = shard(value)) {
    // The addends of this stage are summed on the way to the shard; those of other stages lie in
    // shards of their own.
    const int64_t me = first_rank_ + device_;
    const auto at = std::find(cut->ranks.begin(), cut->ranks.end(), me) - cut->ranks.begin();
    share.holders /= static_cast<int>(cut->ranks.size());
    share.sharded = true;
    for (const Shape& ranks : groups) {
      NNS_CHECK(ranks.size() == cut->ranks.size(), "{} has {} shards in one stage, {} in another",
                graph_.value({value}).name, cut->ranks.size(), ranks.size());
      reduce.insert(static_cast<int>(ranks[static_cast<size_t>(at)]));
    }
  } else {
    for (const Shape& ranks : groups) reduce.insert(ranks.begin(), ranks.end());
  }
  share.reduce.assign(reduce.begin(), reduce.end());
  if (share.reduce.size() == 1) share.reduce.clear();
  return share;
}

std::optional<Shard> Distribution::shard(int value) const {
  if (const Home* known = given(value)) return known->shard;
  if (!plan_ || plan_->weights != plan::WeightHome::sharded) return std::nullopt;
  const auto& v = graph_.value({value});
  const Shape local = home(value).layout.local_shape(v.type.shape, device_);
  std::set<int> holders;
  Shard shard;
  shard.ranks = addends(value, &holders).front();
  const int n = static_cast<int>(shard.ranks.size());
  if (v.role != graph::Role::parameter || n == 1 || numel(local) == 0 || local.empty())
    return std::nullopt;
  // The dimension that has least to be padded; the first of equals.
  const auto padded = [&](int64_t length) {
    return static_cast<double>((length + n - 1) / n * n) / static_cast<double>(length);
  };
  for (size_t d = 1; d < local.size(); ++d)
    if (padded(local[d]) < padded(local[static_cast<size_t>(shard.dim)]))
      shard.dim = static_cast<int>(d);
  shard.whole = local[static_cast<size_t>(shard.dim)];
  const int64_t me = first_rank_ + device_;
  const auto at = std::find(shard.ranks.begin(), shard.ranks.end(), me) - shard.ranks.begin();
  shard.range = part_of({0, shard.whole}, static_cast<int>(at), n);
  return shard;
}

Layout Distribution::made(const Node& node, size_t i) const {
  return plan_ ? placement(node).outputs[i] : Layout::replicated(alone_);
}

int Distribution::producer_stage(int value) const {
  const int producer = graph_.value({value}).producer;
  return producer < 0 ? -1 : stage_of(graph_.nodes[static_cast<size_t>(producer)]);
}

std::vector<int> Distribution::other_stages(int value) const {
  const int from = producer_stage(value);
  std::set<int> stages;
  if (from >= 0)
    for (const Use& u : uses(value))
      if (u.stage != from) stages.insert(u.stage);
  return {stages.begin(), stages.end()};
}

Layout Distribution::departure(int value) const {
  const auto& v = graph_.value({value});
  const Node& node = graph_.nodes[static_cast<size_t>(v.producer)];
  const auto at = std::find(node.outputs.begin(), node.outputs.end(), value);
  return summed(placement(node).outputs[static_cast<size_t>(at - node.outputs.begin())]);
}

Layout Distribution::arrival(int value, int stage) const {
  return home_in(value, stage).layout;
}

int64_t Distribution::tag(int value, int stage, bool gradient) const {
  return crossings_.at({value, stage}) * 2 + (gradient ? 1 : 0);
}

std::vector<int> Distribution::arrivals() const {
  std::vector<int> out;
  if (!plan_) return out;
  for (const auto& value : graph_.values) {
    const auto others = other_stages(value.id);
    if (std::find(others.begin(), others.end(), stage_) != others.end()) out.push_back(value.id);
  }
  return out;
}

Shape Distribution::sends(const Layout& from, const Layout& to, const Shape& shape) const {
  return sends_of(from, to, shape, device_, first_rank_);
}

Shape Distribution::receives(const Layout& from, const Layout& to, const Shape& shape) const {
  return receives_of(from, to, shape, device_, first_rank_);
}

}  // namespace nns::lower
