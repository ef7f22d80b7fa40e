#include "lower/distribution.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace nns::lower {

Distribution::Distribution(std::shared_ptr<const Layouts> layouts, int rank, int stage,
                           std::shared_ptr<const Homes> homes)
    : layouts_(std::move(layouts)), stage_(stage), homes_(std::move(homes)) {
  const plan::Plan* plan = layouts_->plan();
  if (plan == nullptr) return;
  device_ = rank % plan->plan_ngpus;
  first_rank_ = rank - device_;
  NNS_CHECK(stage >= 0 && stage < plan->stages, "stage {} of {}", stage, plan->stages);
}

int Distribution::recompute_region(const graph::Node& node) const {
  const int group = planned() ? layouts_->fitted().ops[static_cast<size_t>(node.id)].recompute : -1;
  if (group >= 0) return 2 * group + 1;
  const int region = node.context.recompute_region;
  return region >= 0 ? 2 * region : -1;
}

const Home* Distribution::given(int value) const {
  if (!homes_) return nullptr;
  const auto it = homes_->find(layouts_->graph().value({value}).name);
  return it == homes_->end() ? nullptr : &it->second;
}

OperandUse Distribution::home(int value) const {
  const Home* known = planned() ? given(value) : nullptr;
  return known != nullptr ? known->use : layouts_->home(value, stage_);
}

std::vector<Shape> Distribution::addends(int value, std::set<int>* holders) const {
  const Shape& shape = layouts_->graph().value({value}).type.shape;
  const Piece mine = home(value).layout.piece(shape, device_);
  std::set<int> others;
  for (const Layouts::Use& u : layouts_->uses(value))
    if (u.stage != stage_) others.insert(u.stage);
  std::vector<int> stages{stage_};
  stages.insert(stages.end(), others.begin(), others.end());
  const auto here = layouts_->addend_groups(value, stage_, mine);
  size_t which = 0;
  while (std::find(here[which].begin(), here[which].end(), device_) == here[which].end()) ++which;
  std::vector<Shape> out;
  for (int stage : stages) {
    const auto groups = layouts_->addend_groups(value, stage, mine);
    if (groups.size() != here.size())
      throw Error(
          ErrorKind::plan,
          fmt::format("[lower.share] {} is held {} times in stage {} and {} times in stage {}; "
                      "expected as many",
                      layouts_->graph().value({value}).name, here.size(), stage_, groups.size(),
                      stage),
          "give the stages that share a weight equally many devices");
    for (const auto& group : groups) holders->insert(group.begin(), group.end());
    Shape ranks;
    for (int u = 0; u < layouts_->units(); ++u)
      for (int device : groups[which]) ranks.push_back(device + u * layouts_->plan()->plan_ngpus);
    out.push_back(std::move(ranks));
  }
  return out;
}

Share Distribution::share(int value) const {
  if (const Home* known = given(value)) return known->share;
  Share share;
  std::set<int> holders;
  const auto groups = addends(value, &holders);
  share.holders = static_cast<int>(holders.size()) * layouts_->units();
  std::set<int> reduce;
  const auto cut = shard(value);
  if (cut) {
    share.zero = cut->zero;
    share.over.assign(cut->ranks.begin(), cut->ranks.end());
    share.dim = cut->dim;
    share.length = cut->whole;
    share.owner = cut->owner;
    share.scatter = cut->zero == plan::Zero::slots && layouts_->plan()->zero.scatter;
  }
  if (share.scatter || share.scattered()) {
    // The addends of these ranks are summed on the way to the shard; those of other stages and
    // groups lie in shards of their own.
    const int64_t me = first_rank_ + device_;
    const size_t n = cut->ranks.size();
    const auto at = std::find(cut->ranks.begin(), cut->ranks.end(), me) - cut->ranks.begin();
    share.holders /= static_cast<int>(n);
    for (const Shape& ranks : groups) {
      NNS_CHECK(ranks.size() == groups[0].size(), "{} has {} addends in one stage, {} in another",
                layouts_->graph().value({value}).name, groups[0].size(), ranks.size());
      for (size_t i = static_cast<size_t>(at); i < ranks.size(); i += n)
        reduce.insert(static_cast<int>(ranks[i]));
    }
  } else {
    for (const Shape& ranks : groups) reduce.insert(ranks.begin(), ranks.end());
  }
  share.reduce.assign(reduce.begin(), reduce.end());
  if (share.reduce.size() == 1) share.reduce.clear();
  return share;
}

size_t shard_dim(const Shape& piece, int ranks) {
  const auto padded = [&](size_t d) {
    return static_cast<double>((piece[d] + ranks - 1) / ranks * ranks) /
           static_cast<double>(piece[d]);
  };
  size_t best = 0;
  for (size_t d = 1; d < piece.size(); ++d)
    if (padded(d) < padded(best)) best = d;
  return best;
}

std::optional<Shard> Distribution::shard(int value) const {
  if (const Home* known = given(value)) return known->shard;
  const plan::Plan* plan = layouts_->plan();
  const auto& v = layouts_->graph().value({value});
  if (plan == nullptr || v.role != graph::Role::parameter || plan->zero.of(v.name) == 0)
    return std::nullopt;
  const Shape local = home(value).layout.local_shape(v.type.shape, device_);
  std::set<int> holders;
  Shard shard;
  shard.zero = plan->zero.of(v.name);
  const int64_t me = first_rank_ + device_;
  // The group of scale units that this one is in.
  const Shape all = addends(value, &holders).front();
  const size_t size = all.size() / static_cast<size_t>(plan->zero.groups);
  const auto place = std::find(all.begin(), all.end(), me) - all.begin();
  const auto begin = all.begin() + place / static_cast<int64_t>(size) * static_cast<int64_t>(size);
  shard.ranks.assign(begin, begin + static_cast<int64_t>(size));
  const int n = static_cast<int>(size);
  if (n == 1 || numel(local) == 0 || local.empty()) return std::nullopt;
  if (shard.zero < plan::Zero::weights && plan->zero.whole.contains(v.name)) {
    shard.zero = plan::Zero::slots;
    shard.owner = owner(value, n);
    shard.whole = local[0];
    shard.range = {0, shard.ranks[static_cast<size_t>(shard.owner)] == me ? shard.whole : 0};
    return shard;
  }
  shard.dim = static_cast<int>(shard_dim(local, n));
  shard.whole = local[static_cast<size_t>(shard.dim)];
  const auto at = std::find(shard.ranks.begin(), shard.ranks.end(), me) - shard.ranks.begin();
  shard.range = part_of({0, shard.whole}, static_cast<int>(at), n);
  return shard;
}

// Weights with undivided slots go to the ranks by turns, each to the one that has least of them.
// Those of a stage are shared out by themselves.
int Distribution::owner(int value, int ranks) const {
  const graph::Graph& graph = layouts_->graph();
  const auto& whole = layouts_->plan()->zero.whole;
  const auto& rests = layouts_->fitted().rests;
  const auto stages = rests.find(graph.value({value}).name);
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  for (int id : graph.parameters) {
    const graph::Value& v = graph.value({id});
    const auto theirs = rests.find(v.name);
    if (!whole.contains(v.name) || stages == rests.end() || theirs == rests.end() ||
        theirs->second != stages->second)
      continue;
    const auto least = std::min_element(load.begin(), load.end());
    if (id == value) return static_cast<int>(least - load.begin());
    *least += numel(v.type.shape);
  }
  return 0;
}

}  // namespace nns::lower
