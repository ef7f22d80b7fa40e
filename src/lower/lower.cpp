// From Graph to the Program of one rank: its stages one after another, which share one slot a
// weight, then the passes over all of them.
#include "lower/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "lower/gradients.h"
#include "lower/passes.h"
#include "lower/schedule/pipeline.h"
#include "lower/stage.h"

namespace nns::lower {
namespace {

using graph::Graph;
using graph::Role;

class Lowering {
 public:
  Lowering(const Graph& graph, const Options& options)
      : graph_(graph), options_(options), e_(out_.program, options.device, out_.notes) {}

  Lowered run() {
    Program& program = out_.program;
    program.model = graph_.name;
    program.training = graph_.training;
    program.graph_hash = graph::exact_hash(graph_);
    program.rank = options_.rank;
    program.embedded = options_.embedded;
    if (options_.embedded && options_.plan && options_.plan->stages > 1)
      throw Error(ErrorKind::plan,
                  fmt::format("[lower.stages] the plan of {} has {} stages; expected one for a "
                              "module inside a hand-written model",
                              graph_.name, options_.plan->stages),
                  "pipelines are for end-to-end modules: compute_config.use_end2end = true");
    make_stages();
    program.world = stages_[0]->where().world();
    for (const std::string& text : stages_[0]->where().fitted().notes) e_.note(text);
    out_.warnings = stages_[0]->where().fitted().warnings;
    program.last_stage = stages_[0]->where().last_stage();
    program.tags = stages_[0]->where().tags();
    bind_leaves();
    for (const auto& stage : stages_) {
      stage->forward();
      if (graph_.training) stage->backward(split_);
      out_.adapters.add(stage->adapters());
    }
    write_schedule();
    fold_views(program);
    std::vector<int> unsent;
    for (const auto& stage : stages_)
      unsent.insert(unsent.end(), stage->unsent().begin(), stage->unsent().end());
    remove_dead_calls(program, unsent);
    gather_again(program);
    find_saved(program);
    reuse_memory(program);
    find_blocks(program);
    insert_releases(program);
    find_loops(program);
    if (program.training) make_sets();
    check(program);
    if (options_.plan) {
      homes_.rests = stages_[0]->where().fitted().rests;
      out_.homes = std::make_shared<const Homes>(std::move(homes_));
    }
    return std::move(out_);
  }

 private:
  void write_schedule() {
    Program& program = out_.program;
    if (!options_.plan || options_.plan->stages == 1) {
      program.schedule = {{'F', 0, 0}};
      if (graph_.training) program.schedule.push_back({'B', 0, 0});
      return;
    }
    const plan::Plan& plan = *options_.plan;
    program.micro_batches = graph_.training ? plan.micro_batches : lanes_of(plan);
    const Schedule schedule = graph_.training ? schedule_of(plan, plan.micro_batches)
                                              : inference_of(plan, lanes_of(plan));
    const int row = pipeline_rank(plan, options_.rank % plan.plan_ngpus);
    program.schedule = schedule.orders.at(static_cast<size_t>(row));
  }

  // Whether ranks that sum gradients run the same calls in the same order.
  bool are_alike() const {
    if (!options_.plan) return true;
    const bool lockstep =
        options_.plan->weights == plan::WeightHome::sharded && options_.plan->units() > 1;
    return options_.plan->stages == 1 && !lockstep;
  }

  // The sets of gradients, their step, and what of both backward shows.
  void make_sets() {
    Program& program = out_.program;
    if (options_.first) {
      program.sets = gradient_sets_of(*options_.first, program);
    } else {
      std::set<std::string> trainable;
      for (int id : graph_.parameters)
        if (graph_.value({id}).requires_grad) trainable.insert(graph_.value({id}).name);
      program.sets =
          gradient_sets(program, options_.set_bytes,
                        reached_by_gradients(graph_, options_.embedded), trainable, are_alike());
      program.step = make_step(program);
      check_step(program);
    }
    if (are_alike()) mark_sums(program);
    write_in_place(program);
  }

  // The stages that run on the rank's device.
  void make_stages() {
    if (!options_.plan) return add_stage(nullptr, {});
    const plan::Plan& plan = *options_.plan;
    if (plan.stages > 1) {
      const Schedule schedule = schedule_of(plan, plan.micro_batches);
      split_ = schedule.split_backward;
      ordered_ = forwards_ascend(schedule);
    }
    for (int lane = 0; lane < lanes_of(plan); ++lane)
      lanes_.push_back(lane == 0 ? options_.plan
                                 : std::make_shared<const plan::Plan>(lane_of(plan, lane)));
    for (const StagePart& part : parts_on(plan, options_.rank % plan.plan_ngpus))
      add_stage(lanes_[static_cast<size_t>(part.lane)], part);
    NNS_CHECK(!stages_.empty(), "rank {} has no stage", options_.rank);
  }

  void add_stage(std::shared_ptr<const plan::Plan> plan, StagePart part) {
    const std::string suffix = stages_.empty() ? "" : std::to_string(stages_.size());
    stages_.push_back(std::make_unique<StageLowering>(
        graph_, Distribution(graph_, std::move(plan), options_.rank, part.stage, options_.homes),
        e_, out_, suffix));
  }

  // One slot for all stages that use a leaf.
  void bind_leaf(int id, SlotRole role, std::vector<int>* list) {
    const auto& value = graph_.values.at(static_cast<size_t>(id));
    const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
    Ref slot;
    Piece piece;
    for (const auto& stage : stages_) {
      const Distribution& where = stage->where();
      if (rests && !where.is_used_here(id)) continue;
      const OperandUse home = rests ? where.home(id) : where.whole();
      Piece own = home.layout.piece(value.type.shape, where.device());
      std::optional<Shard> shard;
      if (role == SlotRole::parameter) shard = where.shard(id);
      if (shard) {
        Range& cut = own.box[static_cast<size_t>(shard->dim)];
        cut = {cut.start + shard->range.start, cut.start + shard->range.stop};
      }
      if (slot.id < 0) {
        piece = own;
        slot = new_leaf(value, role, piece);
        if (list != nullptr) list->push_back(slot.id);
        if (rests && where.planned()) {
          const bool shared = role == SlotRole::parameter;
          homes_.own.try_emplace(value.name,
                                 Home{home, shared ? share(id, where) : Share{}, shard});
          if (shared) out_.program.shares.push_back(homes_.own.at(value.name).share);
        }
      } else if (own.box != piece.box) {
        fail(ErrorKind::plan,
             "[lower.share] {} is cut into other parts in stage {} than in another stage of device "
             "{}; expected one part for all stages of a device",
             value.name, where.stage(), where.device());
      }
      stage->bind_leaf(id, home, slot, std::move(shard));
    }
  }

  Ref new_leaf(const graph::Value& value, SlotRole role, const Piece& piece) {
    Shape local;
    for (const Range& r : piece.box) local.push_back(r.length());
    const Ref slot = e_.new_slot({local, value.type.dtype}, role, value.name);
    if (local != value.type.shape) {
      Slot& made = out_.program.slots.back();
      made.whole = value.type.shape;
      made.box = piece.box;
    }
    return slot;
  }

  // How a parameter is shared; the mirror of this device runs the same stage in another lane.
  Share share(int id, const Distribution& where) {
    const std::string& name = graph_.value({id}).name;
    if (lanes_.size() < 2 || (options_.homes && options_.homes->own.contains(name)))
      return where.share(id);
    const plan::Plan& plan = *options_.plan;
    if (plan.weights == plan::WeightHome::sharded)
      fail(ErrorKind::plan,
           "[lower.share] weights rest in shards under schedule '{}'; expected replicated ones",
           plan.schedule);
    std::set<int> holders, reduce;
    const auto add = [&](const Distribution& lane) {
      for (const Shape& ranks : lane.addends(id, &holders))
        reduce.insert(ranks.begin(), ranks.end());
    };
    const auto& here = where.devices();
    const auto at = std::find(here.begin(), here.end(), where.device()) - here.begin();
    for (const auto& lane : lanes_) {
      auto& mirror = mirrors_[{lane.get(), where.stage()}];
      if (!mirror) {
        const auto& devices = lane->stage_devices[static_cast<size_t>(where.stage())];
        mirror = std::make_unique<Distribution>(
            graph_, lane, where.first_rank() + devices[static_cast<size_t>(at)], where.stage(),
            nullptr);
      }
      add(*mirror);
    }
    Share share;
    share.holders = static_cast<int>(holders.size()) * plan.units();
    share.reduce.assign(reduce.begin(), reduce.end());
    return share;
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
    if (!ordered_ && !graph_.buffer_updates.empty())
      fail(ErrorKind::plan,
           "[lower.buffers] {} is updated by every micro-batch; schedule '{}' runs them out of "
           "order "
           "or on two ranks; expected one rank to see them in order",
           graph_.value({graph_.buffer_updates[0].first}).name, options_.plan->schedule);
  }

  const Graph& graph_;
  Options options_;
  Lowered out_;
  Emitter e_;
  bool split_ = false;   // weight gradients apart
  bool ordered_ = true;  // every rank sees the micro-batches of its stages in order
  std::vector<std::shared_ptr<const plan::Plan>> lanes_;
  std::vector<std::unique_ptr<StageLowering>> stages_;
  Homes homes_;
  std::map<std::pair<const plan::Plan*, int>, std::unique_ptr<Distribution>> mirrors_;
};

}  // namespace

Lowered lower(const Graph& graph, const Options& options) {
  if (options.plan && options.homes)
    if (const auto carried = plan::carry(*options.plan, graph, options.homes->rests))
      return Lowering(*carried, options).run();
  return Lowering(graph, options).run();
}

}  // namespace nns::lower
