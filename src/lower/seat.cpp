#include "lower/seat.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "lower/schedule/pipeline.h"

namespace nns::lower {

using graph::Role;

Shape LeafPlace::local_shape() const {
  Shape shape;
  for (const Range& r : box) shape.push_back(r.length());
  return shape;
}

Seat::Seat(const std::vector<std::shared_ptr<const Layouts>>& lanes, int rank,
           std::shared_ptr<const Homes> homes)
    : lanes_(lanes), given_(std::move(homes)) {
  const plan::Plan* plan = lanes[0]->plan();
  if (plan == nullptr) {
    stages_.emplace_back(lanes[0], rank, 0, given_);
    return;
  }
  for (const StagePart& part : parts_on(*plan, rank % plan->plan_ngpus))
    stages_.emplace_back(lanes[static_cast<size_t>(part.lane)], rank, part.stage, given_);
  NNS_CHECK(!stages_.empty(), "rank {} has no stage", rank);
}

std::optional<LeafPlace> Seat::place(size_t stage, int value) const {
  const Distribution& where = stages_[stage];
  const graph::Value& v = where.layouts().graph().value({value});
  const bool rests = v.role == Role::parameter || v.role == Role::buffer;
  if (rests && !where.rests_here(value)) return std::nullopt;
  LeafPlace out{rests ? where.home(value) : where.whole(), {}, {}};
  out.box = out.home.layout.piece(v.type.shape, where.device()).box;
  if (v.role == Role::parameter) out.shard = where.shard(value);
  if (out.shard && out.shard->zero == plan::Zero::weights) {
    Range& cut = out.box[static_cast<size_t>(out.shard->dim)];
    cut = {cut.start + out.shard->range.start, cut.start + out.shard->range.stop};
  }
  return out;
}

std::optional<LeafPlace> Seat::place(int value) const {
  std::optional<LeafPlace> out;
  for (size_t s = 0; s < stages_.size(); ++s) {
    std::optional<LeafPlace> own = place(s, value);
    if (out && own && own->box != out->box)
      fail(ErrorKind::plan,
           "[lower.share] {} is cut into other parts in stage {} than in another stage of device "
           "{}; expected one part for all stages of a device",
           stages_[s].layouts().graph().value({value}).name, stages_[s].stage(), device());
    if (!out) out = std::move(own);
  }
  return out;
}

const Distribution* Seat::user(int value) const {
  for (const Distribution& where : stages_)
    if (where.rests_here(value)) return &where;
  return nullptr;
}

// The mirror of a device runs the same stage in another lane.
Share Seat::share(int value) const {
  const Distribution& where = *user(value);
  const std::string& name = where.layouts().graph().value({value}).name;
  if (lanes_.size() < 2 || (given_ && given_->contains(name))) return where.share(value);
  const plan::Plan& plan = *lanes_[0]->plan();
  Share share = where.share(value);
  if (share.scattered())
    throw Error(ErrorKind::plan,
                fmt::format("[lower.share] zero is {} under schedule '{}', where ranks see "
                            "micro-batches in other orders; expected 0 or 1",
                            share.zero, plan.schedule),
                "set compute_config.use_zero=1, or another pas_config.pipeline_scheduler");
  std::set<int> holders, reduce;
  const auto& here = where.devices();
  const auto at = std::find(here.begin(), here.end(), where.device()) - here.begin();
  for (const auto& lane : lanes_) {
    const int device = lane->devices_of(where.stage())[static_cast<size_t>(at)];
    const Distribution mirror(lane, where.first_rank() + device, where.stage(), nullptr);
    for (const Shape& ranks : mirror.addends(value, &holders))
      reduce.insert(ranks.begin(), ranks.end());
  }
  share.scatter = false;  // the mirror's addends are in the same sum
  share.holders = static_cast<int>(holders.size()) * plan.units();
  share.reduce.assign(reduce.begin(), reduce.end());
  return share;
}

Homes Seat::homes() const {
  Homes out;
  const graph::Graph& graph = lanes_[0]->graph();
  for (const auto* leaves : {&graph.parameters, &graph.buffers})
    for (int value : *leaves) {
      const auto placed = place(value);
      if (!placed) continue;
      const bool shared = leaves == &graph.parameters;
      out.try_emplace(graph.value({value}).name,
                      Home{placed->home, shared ? share(value) : Share{}, placed->shard});
    }
  return out;
}

}  // namespace nns::lower
