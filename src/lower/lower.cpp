// The lowering of a class of devices: the stages that they run one after another, which share one
// slot a weight, then the passes over all of them.
#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>

#include "base/error.h"
#include "lower/gradients.h"
#include "lower/passes.h"
#include "lower/schedule/pipeline.h"
#include "lower/skeleton.h"
#include "lower/stage.h"

namespace nns::lower {
namespace {

using graph::Graph;
using graph::Role;

std::atomic<int64_t> lowerings{0};

class Lowering {
 public:
  Lowering(const Common& common, const std::vector<Seat>& seats, bool alone)
      : common_(common),
        graph_(*common.graph),
        seats_(seats),
        peers_(devices_of(seats), !alone && share_units(common),
               alone || !share_units(common) ? seats[0].first_rank() : 0),
        e_(out_.program, common.options.device, out_.notes) {}

  ClassProgram run() {
    start();
    for (const Distribution& where : seats_[0].stages()) {
      const std::string suffix = stages_.empty() ? "" : std::to_string(stages_.size());
      stages_.push_back(std::make_unique<StageLowering>(
          graph_, where, peers_, e_, out_, suffix, common_.options.sights ? &sights_ : nullptr));
    }
    bind_leaves();
    for (const auto& stage : stages_) {
      stage->forward();
      if (graph_.training) stage->backward(common_.split_backward);
      out_.adapters.add(stage->adapters());
    }
    Program& program = out_.program;
    sights_.rename(fold_views(program));
    std::vector<int> unsent;
    for (const auto& stage : stages_)
      unsent.insert(unsent.end(), stage->unsent().begin(), stage->unsent().end());
    remove_dead_calls(program, unsent);
    fuse_sums(program, common_.options.device);
    choose_products(program, common_.options.products, common_.options.device);
    cast_once(program);
    gather_again(program);
    offload(program, offloaded(), common_.options.device);
    join_scatters(program, common_.options.set_bytes);
    find_saved(program);
    reuse_memory(program);
    find_blocks(program);
    insert_releases(program);
    write_in_place(program);
    gather_ahead(program);
    const Holes holes = peers_.holes();
    Memory bytes;
    if (!common_.options.priced) {
      check_filled(program, holes);
      bytes = memory(program);
    }
    out_.sights = std::move(sights_.list());
    return {std::move(out_), holes, std::move(leaves_), bytes};
  }

 private:
  static std::vector<int> devices_of(const std::vector<Seat>& seats) {
    std::vector<int> devices;
    for (const Seat& seat : seats) devices.push_back(seat.device());
    return devices;
  }

  // By graph node: whether what it keeps for backward waits on the host.
  std::vector<bool> offloaded() const {
    std::vector<bool> nodes(graph_.nodes.size(), false);
    if (common_.options.plan == nullptr || !graph_.training) return nodes;
    const auto& ops = common_.lanes[0]->fitted().ops;
    for (size_t n = 0; n < nodes.size(); ++n) nodes[n] = ops[n].offload;
    return nodes;
  }

  // Whether a class has devices of several scale units. Where each unit is a group that shares out
  // weights by itself, it has classes of its own.
  static bool share_units(const Common& common) {
    const plan::Plan* plan = common.options.plan.get();
    if (plan == nullptr || plan->units() == 1) return false;
    return plan->zero.most() < plan::Zero::gradients || plan->zero.groups < plan->units();
  }

  // Loops go by numbers, so they are marked once those are there.
  void check_filled(Program program, const Holes& holes) const {
    fill(program, holes, peers_.device(), seats_[0].first_rank());
    find_loops(program);
    check(program);
  }

  void start() {
    const Layouts& layouts = *common_.lanes[0];
    Program& program = out_.program;
    program.model = graph_.name;
    program.training = graph_.training;
    program.graph_hash = common_.graph_hash;
    program.embedded = common_.options.embedded;
    program.world = layouts.world();
    program.last_stage = layouts.last_stage();
    program.tags = layouts.tags();
    for (const std::string& text : layouts.fitted().notes) e_.note(text);
    out_.warnings = layouts.fitted().warnings;
    write_schedule();
  }

  void write_schedule() {
    Program& program = out_.program;
    const plan::Plan* plan = common_.options.plan.get();
    if (plan == nullptr || plan->stages == 1) {
      program.schedule = {{'F', 0, 0}};
      if (graph_.training) program.schedule.push_back({'B', 0, 0});
      return;
    }
    program.micro_batches = graph_.training ? plan->micro_batches : lanes_of(*plan);
    const Schedule schedule = graph_.training ? schedule_of(*plan, program.micro_batches)
                                              : inference_of(*plan, program.micro_batches);
    const int row = pipeline_rank(*plan, peers_.device());
    program.schedule = schedule.orders.at(static_cast<size_t>(row));
  }

  void bind_leaves() {
    Program& program = out_.program;
    for (int id : graph_.inputs) bind_leaf(id, SlotRole::input, nullptr);
    for (int id : graph_.parameters) bind_leaf(id, SlotRole::parameter, &program.parameters);
    for (int id : graph_.buffers) bind_leaf(id, SlotRole::buffer, &program.buffers);
    for (const auto& value : graph_.values) {
      if (value.role != Role::constant) continue;
      bind_leaf(value.id, SlotRole::constant, &program.constants);
      program.constant_data.push_back(value.data);
    }
    if (!common_.ordered && !graph_.buffer_updates.empty())
      fail(ErrorKind::plan,
           "[lower.buffers] {} is updated by every micro-batch; schedule '{}' runs them out of "
           "order "
           "or on two ranks; expected one rank to see them in order",
           graph_.value({graph_.buffer_updates[0].first}).name, common_.options.plan->schedule);
  }

  // One slot for all stages that use a leaf.
  void bind_leaf(int id, SlotRole role, std::vector<int>* list) {
    std::map<int, std::optional<LeafPlace>> places;
    for (int device : peers_.devices()) places[device] = seat_of(device).place(id);
    if (!peers_.alike([&](int device) { return places[device].has_value(); })) return;
    const Shape local = peers_.alike([&](int device) { return places[device]->local_shape(); });
    const auto& value = graph_.value({id});
    const Ref slot = e_.new_slot({local, value.type.dtype}, role, value.name);
    if (local != value.type.shape) out_.program.slots.back().whole = value.type.shape;
    const Shape gradient = peers_.alike([&](int device) {
      const auto& shard = places[device]->shard;
      if (!shard || shard->zero != plan::Zero::gradients) return Shape{};
      Shape shape = places[device]->local_shape();
      shape[static_cast<size_t>(shard->dim)] = shard->range.length();
      return shape;
    });
    out_.program.slots.back().gradient = gradient;
    leaves_.push_back({id, slot.id});
    if (list != nullptr) list->push_back(slot.id);
    for (size_t s = 0; s < stages_.size(); ++s) bind_leaf(s, id, slot);
  }

  void bind_leaf(size_t stage, int id, Ref slot) {
    std::map<int, std::optional<LeafPlace>> places;
    for (int device : peers_.devices()) places[device] = seat_of(device).place(stage, id);
    auto& mine = places[peers_.device()];
    if (!mine) return;
    peers_.alike([&](int device) {
      const OperandUse& home = places[device]->home;
      return std::pair(home.layout, home.partial);
    });
    const int zero = peers_.alike([&](int device) {
      const auto& shard = places[device]->shard;
      return shard ? shard->zero : plan::Zero::none;
    });
    if (zero < plan::Zero::gradients) mine->shard.reset();  // its program is as without
    if (mine->shard) {
      peers_.alike([&](int device) {
        const Shard& shard = *places[device]->shard;
        return std::tuple(shard.dim, shard.whole, shard.range.length());
      });
      mine->shard->ranks =
          peers_.list([&](int device) { return seat_of(device).place(stage, id)->shard->ranks; });
    }
    stages_[stage]->bind_leaf(id, mine->home, slot, std::move(mine->shard));
  }

  const Seat& seat_of(int device) const {
    return *std::find_if(seats_.begin(), seats_.end(),
                         [&](const Seat& seat) { return seat.device() == device; });
  }

  const Common& common_;
  const Graph& graph_;
  const std::vector<Seat>& seats_;
  Peers peers_;
  Lowered out_;
  Emitter e_;
  std::vector<std::unique_ptr<StageLowering>> stages_;
  std::vector<Leaf> leaves_;
  Sights sights_;
};

}  // namespace

int64_t count_lowerings() {
  return lowerings;
}

ClassProgram lower_class(const Common& common, const std::vector<Seat>& seats, bool alone) {
  ++lowerings;
  return Lowering(common, seats, alone).run();
}

Lowered lower(const Graph& graph, const Options& options) {
  // The caller's graph, which outlives the skeleton.
  const std::shared_ptr<const Graph> borrowed(std::shared_ptr<const Graph>(), &graph);
  return Skeleton(borrowed, options, true).project(options.rank);
}

}  // namespace nns::lower
