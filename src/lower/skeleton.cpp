#include "lower/skeleton.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "lower/check_ranks.h"
#include "lower/gradients.h"
#include "lower/passes.h"
#include "lower/schedule/pipeline.h"

namespace nns::lower {
namespace {

// The programs of more ranks are not held at one time.
constexpr int kMostCompared = 64;

// Forward of a module inside a hand-written model returns before its backward is asked for.
void check_embedded(const graph::Graph& graph, const plan::Plan& plan) {
  if (plan.schedule == "gpipe") return;
  throw Error(ErrorKind::plan,
              fmt::format("[lower.stages] the plan of {} has {} stages under schedule '{}'; "
                          "expected 'gpipe' for a module inside a hand-written model, whose "
                          "backward starts after all of forward",
                          graph.name, plan.stages, plan.schedule),
              "pas_config.pipeline_scheduler = 'gpipe'");
}

Common common_of(std::shared_ptr<const graph::Graph> graph, Options options) {
  Common common{std::move(graph), std::move(options), {}, 0, false, true, {}, {}};
  const auto& plan = common.options.plan;
  if (plan && plan->stages > 1) {
    const Schedule schedule = schedule_of(*plan, plan->micro_batches);
    common.split_backward = schedule.split_backward;
    common.ordered = forwards_ascend(schedule);
    if (common.options.embedded) check_embedded(*common.graph, *plan);
  }
  const plan::Resting* rests =
      plan && common.options.first ? &common.options.first->rests() : nullptr;
  if (rests != nullptr)
    if (auto carried = plan::carry(*plan, *common.graph, *rests))
      common.graph = std::make_shared<const graph::Graph>(std::move(*carried));
  for (int lane = 0; lane < (plan ? lanes_of(*plan) : 1); ++lane)
    common.lanes.push_back(std::make_shared<const Layouts>(
        *common.graph, lane == 0 ? plan : std::make_shared<const plan::Plan>(lane_of(*plan, lane)),
        rests));
  common.graph_hash = graph::exact_hash(*common.graph);
  if (!common.graph->training) return common;
  for (int id : common.graph->parameters)
    if (const auto& value = common.graph->value({id}); value.requires_grad)
      common.trainable.insert(value.name);
  common.reached = reached_by_gradients(*common.graph, common.options.embedded);
  return common;
}

}  // namespace

Skeleton::Skeleton(std::shared_ptr<const graph::Graph> graph, Options options, bool alone)
    : common_(common_of(std::move(graph), std::move(options))), alone_(alone) {}

Seat Skeleton::seat(int rank) const {
  const auto& first = common_.options.first;
  return Seat(common_.lanes, rank, first ? first->homes(rank) : nullptr);
}

std::shared_ptr<const Homes> Skeleton::homes(int rank) const {
  if (!common_.options.plan) return nullptr;
  auto& known = homes_[rank];
  if (!known) known = std::make_shared<const Homes>(seat(rank).homes());
  return known;
}

// Ranks may be in one class if their devices run the same stages and their shards have the same
// sizes, which may differ from unit to unit.
int Skeleton::kind_of(int rank) const {
  if (alone_ || !common_.options.plan) return rank;
  const plan::Plan& plan = *common_.options.plan;
  if (!kinds_.empty()) return kinds_[static_cast<size_t>(rank)];
  kinds_.resize(static_cast<size_t>(plan.runtime_ngpus));
  std::map<std::string, int> known;
  for (int device = 0; device < plan.plan_ngpus; ++device) {
    const Seat seat = this->seat(device);
    std::string stages;
    for (const StagePart& part : parts_on(plan, device))
      stages += fmt::format("{}:{} ", part.stage, part.lane);
    std::vector<Shard> uneven;
    for (int value : common_.graph->parameters) {
      const auto placed = seat.place(value);
      if (!placed || !placed->shard || placed->shard->zero < plan::Zero::gradients) continue;
      const auto n = static_cast<int64_t>(placed->shard->ranks.size());
      if (placed->shard->whole % n != 0) uneven.push_back(*placed->shard);
    }
    const int group = plan.units() / plan.zero.groups;  // scale units
    for (int of = device; of < plan.runtime_ngpus; of += plan.plan_ngpus) {
      std::string text = stages;
      // Units of other groups scatter over other ranks.
      const int unit = of / plan.plan_ngpus, first = unit / group * group * plan.plan_ngpus;
      if (plan.zero.most() >= plan::Zero::gradients) text += fmt::format("group {} ", first);
      for (const Shard& shard : uneven) {
        const auto at = std::find(shard.ranks.begin(), shard.ranks.end(), of - first);
        const Range part = part_of({0, shard.whole}, static_cast<int>(at - shard.ranks.begin()),
                                   static_cast<int>(shard.ranks.size()));
        text += fmt::format("{} ", part.length());
      }
      kinds_[static_cast<size_t>(of)] =
          known.emplace(text, static_cast<int>(known.size())).first->second;
    }
  }
  return kinds_[static_cast<size_t>(rank)];
}

// The rank, and of each other device that may be in its class one rank.
std::vector<int> Skeleton::alike(int rank) const {
  std::vector<int> out{rank};
  if (alone_ || !common_.options.plan) return out;
  const plan::Plan& plan = *common_.options.plan;
  const int kind = kind_of(rank);
  for (int device = 0; device < plan.plan_ngpus; ++device) {
    if (device == rank % plan.plan_ngpus || of_.contains({kind, device})) continue;
    for (int other = device; other < plan.runtime_ngpus; other += plan.plan_ngpus)
      if (kind_of(other) == kind) {
        out.push_back(other);
        break;
      }
  }
  return out;
}

// The kind of ranks whose programs nobody shares; beside it stands the rank, not the device.
constexpr int kNoKind = -1;

const ClassProgram& Skeleton::class_of(int rank) const {
  const int devices = common_.options.plan ? common_.options.plan->plan_ngpus : 1;
  const int kind = kind_of(rank);
  for (const auto& key : {std::pair(kind, rank % devices), std::pair(kNoKind, rank)})
    if (const auto known = of_.find(key); known != of_.end()) return *known->second;
  std::vector<int> ranks = alike(rank);
  while (true) {
    std::vector<Seat> seats;
    for (int other : ranks) seats.push_back(seat(other));
    const auto made = std::make_shared<const ClassProgram>(lower_class(common_, seats, alone_));
    const Holes& holes = made->holes;
    const Pattern pattern = pattern_of(made->lowered.program, holes);
    const bool fits = pattern.by_device[0] == pattern.marked;
    // Where the first one itself has equal numbers behind different marks, it is lowered again with
    // those that are like it in this.
    const auto& wanted = fits ? pattern.marked : pattern.by_device[0];
    std::vector<int> rest;
    for (int other : ranks) {
      const auto at = std::find(holes.devices.begin(), holes.devices.end(), other % devices);
      if (at == holes.devices.end() ||
          pattern.by_device[static_cast<size_t>(at - holes.devices.begin())] != wanted)
        continue;
      rest.push_back(other);
      if (fits) of_.emplace(std::pair(kind, other % devices), made);
    }
    if (fits) break;
    if (rest.size() == ranks.size()) {  // all have equal numbers there, and still other marks
      const auto own =
          std::make_shared<const ClassProgram>(lower_class(common_, {seat(rank)}, true));
      return *of_.emplace(std::pair(kNoKind, rank), own).first->second;
    }
    ranks = std::move(rest);
  }
  return *of_.at({kind, rank % devices});
}

Lowered Skeleton::project(int rank) const {
  NNS_CHECK(!common_.options.plan || (rank >= 0 && rank < world()), "rank {} of {}", rank, world());
  const ClassProgram& made = class_of(rank);
  const Seat seat = this->seat(rank);
  Lowered out = made.lowered;
  Program& program = out.program;
  program.rank = rank;
  fill(program, made.holes, seat.device(), seat.first_rank());
  if (!common_.options.priced) find_loops(program);
  for (const Leaf& leaf : made.leaves) {
    Slot& slot = program.slots[static_cast<size_t>(leaf.slot)];
    if (!slot.whole.empty()) slot.box = seat.place(leaf.value)->box;
  }
  program.shares = shares(rank);
  if (program.training) add_step(program);
  return out;
}

std::vector<Share> Skeleton::shares(int rank) const {
  std::vector<Share> out;
  if (!common_.options.plan) return out;
  const ClassProgram& made = class_of(rank);
  const Seat seat = this->seat(rank);
  for (const Leaf& leaf : made.leaves)
    if (made.lowered.program.slot(leaf.slot).role == SlotRole::parameter)
      out.push_back(seat.share(leaf.value));
  return out;
}

// The sets of gradients, where backward may sum them, and their step.
void Skeleton::add_step(Program& program) const {
  const plan::Plan* plan = common_.options.plan.get();
  // Whether ranks that sum gradients run the same calls in the same order. In lockstep a unit's
  // last backward may be an idle one, which completes no gradient.
  const bool lockstep =
      plan != nullptr && plan->zero.most() >= plan::Zero::gradients && plan->units() > 1;
  const bool alike = plan == nullptr || (plan->stages == 1 && !lockstep);
  const Skeleton* first = common_.options.first.get();
  if (first != nullptr && first->common_.graph->training)
    program.sets = gradient_sets_of(first->project(program.rank).program, program);
  else
    program.sets = gradient_sets(program, common_.options.set_bytes, common_.reached,
                                 common_.trainable, alike);
  if (common_.options.step) program.step = make_step(program);
  if (alike) mark_sums(program);
  check_step(program);
}

std::vector<Seen> Skeleton::seen(int rank) const {
  const Lowered made = project(rank);
  return seen_on(*common_.graph, made.program, made.sights, seat(rank).device());
}

std::vector<std::vector<int>> Skeleton::classes() const {
  std::map<const ClassProgram*, std::vector<int>> ranks;
  for (int rank = 0; rank < world(); ++rank) ranks[&class_of(rank)].push_back(rank);
  std::vector<std::vector<int>> out;
  for (auto& [made, list] : ranks) out.push_back(std::move(list));
  std::sort(out.begin(), out.end());
  return out;
}

bool Skeleton::check() const {
  classes();  // a lowering checks what it has made
  if (world() > kMostCompared || !common_.options.plan) return false;
  std::vector<Program> programs;
  for (int rank = 0; rank < world(); ++rank) programs.push_back(project(rank).program);
  std::vector<const Program*> all;
  for (const Program& program : programs) all.push_back(&program);
  check_ranks(all, *common_.options.plan);
  return true;
}

}  // namespace nns::lower
