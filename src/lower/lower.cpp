// From Graph to the Program of one rank: every operator that has a part on its device, with the
// communication that brings operands to where they are used.
#include "lower/lower.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "lower/distribution.h"
#include "lower/exchange.h"
#include "lower/passes.h"
#include "lower/tape.h"

namespace nns::lower {
namespace {

using graph::Graph;
using graph::Nest;
using graph::Node;
using graph::Role;

// Name of a value for generated code: the module that makes just this call, or the operator.
std::string hint(const Node& node, const std::vector<int>& calls_in_module_of) {
  std::string op = node.op.substr(node.op.find("::") + 2);
  op = op.substr(0, op.find('.'));
  if (calls_in_module_of[static_cast<size_t>(node.id)] != 1 || node.module.empty()) return op;
  std::string last = node.module.substr(node.module.rfind('.') + 1);
  const bool numeric = last.find_first_not_of("0123456789") == std::string::npos;
  return numeric ? op : last;
}

class Lowering {
 public:
  Lowering(const Graph& graph, const Options& options)
      : graph_(graph),
        options_(options),
        e_(out_.program, options.device, out_.notes),
        tape_(e_, graph.training),
        where_(graph, options.plan, options.rank, options.stage, options.homes),
        exchange_(tape_, e_, where_.device(), where_.first_rank()) {}

  Lowered run() {
    out_.program.model = graph_.name;
    out_.program.training = graph_.training;
    out_.program.graph_hash = graph::exact_hash(graph_);
    out_.program.rank = options_.rank;
    out_.program.world = where_.world();
    for (const std::string& text : where_.fitted().notes) e_.note(text);
    out_.warnings = where_.fitted().warnings;
    out_.program.embedded = options_.embedded;
    if (options_.embedded && options_.plan && options_.plan->stages > 1)
      throw Error(ErrorKind::plan,
                  fmt::format("[lower.stages] the plan of {} has {} stages; expected one for a "
                              "module inside a hand-written model",
                              graph_.name, options_.plan->stages),
                  "pipelines are for end-to-end modules: compute_config.use_end2end = true");
    held_.resize(graph_.values.size());
    bind_leaves();
    forward();
    if (graph_.training) backward();
    finish();
    return std::move(out_);
  }

 private:
  // --- leaves
  // -------------------------------------------------------------------------------------

  void bind_leaf(int id, SlotRole role) {
    const auto& value = graph_.values.at(static_cast<size_t>(id));
    const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
    const OperandUse home = rests ? where_.home(id) : where_.whole();
    Piece piece = home.layout.piece(value.type.shape, where_.device());
    std::optional<Shard> shard;
    if (role == SlotRole::parameter) shard = where_.shard(id);
    if (shard) {
      Range& cut = piece.box[static_cast<size_t>(shard->dim)];
      cut = {cut.start + shard->range.start, cut.start + shard->range.stop};
    }
    Shape local;
    for (const Range& r : piece.box) local.push_back(r.length());
    const Ref slot = e_.new_slot({local, value.type.dtype}, role, value.name);
    if (local != value.type.shape) {
      auto& made = out_.program.slots.back();
      made.whole = value.type.shape;
      made.box = piece.box;
    }
    held_[static_cast<size_t>(id)] = {home, slot, shard};
    if (rests && where_.planned())
      homes_.try_emplace(
          value.name, Home{home, role == SlotRole::parameter ? where_.share(id) : Share{}, shard});
    if (role == SlotRole::parameter && value.requires_grad) tape_.require_grad(slot);
    if (role == SlotRole::input && options_.embedded && value.requires_grad)
      tape_.require_grad(slot);
    if (role == SlotRole::parameter && where_.planned())
      out_.program.shares.push_back(homes_.at(value.name).share);
  }

  void bind_leaves() {
    Program& program = out_.program;
    const auto bind = [&](const std::vector<int>& ids, SlotRole role, std::vector<int>* list) {
      for (int id : ids) {
        const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
        if (rests && !where_.is_used_here(id)) continue;
        bind_leaf(id, role);
        if (list != nullptr) list->push_back(held_[static_cast<size_t>(id)].slot.id);
      }
    };
    bind(graph_.inputs, SlotRole::input, nullptr);
    bind(graph_.parameters, SlotRole::parameter, &program.parameters);
    bind(graph_.buffers, SlotRole::buffer, &program.buffers);
    std::vector<int> constants;
    for (const auto& value : graph_.values)
      if (value.role == Role::constant) constants.push_back(value.id);
    bind(constants, SlotRole::constant, &program.constants);
    for (int id : constants)
      program.constant_data.push_back(graph_.values[static_cast<size_t>(id)].data);
  }

  // The slot that holds a value as it was made; a parameter that rests in shards is gathered at its
  // first use.
  Ref slot_of(Ref value) {
    Held& held = held_.at(static_cast<size_t>(value.id));
    if (!held.shard) return held.slot;
    if (held.gathered.id < 0) {
      const auto& v = graph_.value(value);
      const TensorType type{held.use.layout.local_shape(v.type.shape, where_.device()),
                            v.type.dtype};
      const std::vector<TensorType> types{type};
      held.gathered = tape_
                          .apply("comm::gather_weight",
                                 {{"self", held.slot},
                                  {"dim", static_cast<int64_t>(held.shard->dim)},
                                  {"whole", held.shard->whole},
                                  {"group", held.shard->ranks}},
                                 CallSite{}, &types)
                          .front();
      out_.program.slots[static_cast<size_t>(held.gathered.id)].name =
          v.name.substr(v.name.rfind('.') + 1);
    }
    return held.gathered;
  }

  // The slot that holds a value as `use` wants it; conversions are shared by uses that want alike.
  Ref slot_for(Ref value, const OperandUse& use) {
    const Held& held = held_.at(static_cast<size_t>(value.id));
    const TensorType& type = graph_.value(value).type;
    const SlotRole role = this->role(held.slot);
    const Ref slot = slot_of(value);
    const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
    const auto axes = Distribution::partial_axes(use);
    if (rests && same_pieces(held.use.layout, use.layout, type.shape) &&
        exchange_.group(held.use.layout, Distribution::partial_axes(held.use)) ==
            exchange_.group(use.layout, axes))
      return slot;
    const std::string key =
        fmt::format("{} {} {}", value.id, to_string(use.layout), fmt::join(axes, ","));
    const auto known = converted_.find(key);
    if (known != converted_.end()) return known->second;
    const Ref made = exchange_.convert(rests ? exchange_.owned(slot, held.use) : slot,
                                       held.use.layout, use, type);
    converted_.emplace(key, made);
    return made;
  }

  // --- forward
  // ------------------------------------------------------------------------------------

  void forward() {
    Segment& segment = add_segment("forward");
    for (int id : graph_.inputs) segment.inputs.push_back(slot_of({id}).id);
    e_.write_to(segment.instrs);

    std::map<std::string, int> calls;  // per module
    for (const Node& node : graph_.nodes) ++calls[node.module];
    std::vector<int> calls_in_module;
    for (const Node& node : graph_.nodes) calls_in_module.push_back(calls[node.module]);

    receive_values(segment.instrs);
    for (size_t i = 0; i < graph_.nodes.size();) {
      if (!where_.is_here(graph_.nodes[i])) {
        ++i;
        continue;
      }
      const auto run = run_from(i);
      if (turns_of(*run[0]) > 1)
        call_in_turns(run, segment.instrs, calls_in_module);
      else
        call(*run[0], 0, segment.instrs, calls_in_module);
      for (const Node* node : run) {
        e_.set_origin({node->id, node->module, node->loc});
        update_buffers(*node, segment.instrs);
        for (int value : node->outputs) send_value(value);
      }
      i = static_cast<size_t>(run.back()->id) + 1;
    }
    if (!where_.is_last()) return;
    for (const Nest& nest : graph_.outputs) out_.program.outputs.push_back(convert(nest, segment));
  }

  // Makes this device's call of a node, in turn `turn` if it has several, and returns its results.
  std::vector<Ref> call(const Node& node, int turn, std::vector<Instr>& instrs,
                        const std::vector<int>& calls_in_module) {
    e_.set_origin({node.id, node.module, node.loc});
    const size_t first = instrs.size();
    const size_t first_slot = out_.program.slots.size();
    const int region = region_of(node, turn);
    CallSite site{node.ordinal, node.context.grad_enabled, region, {}, {}};
    std::vector<TensorType> types;
    std::vector<NamedArg> args = local_call(node, turn, site, types);
    const std::vector<Ref> outs = tape_.apply(node.op, std::move(args), site, &types);
    NNS_CHECK(outs.size() == types.size(), "{} lowered to {} outputs, not {}", node.op, outs.size(),
              types.size());
    const std::string name = hint(node, calls_in_module);
    name_slots(instrs, first);
    for (size_t i = 0; i < outs.size(); ++i) {
      NNS_CHECK(e_.type(outs[i]) == types[i], "{} lowered to {}, not {}", node.op,
                to_string(e_.type(outs[i])), to_string(types[i]));
      const int value = node.outputs[i];
      if (turns_of(node) > 1)
        in_turns_[value].push_back(outs[i]);
      else
        held_[static_cast<size_t>(value)] = {{where_.made(node, i), {}}, outs[i], {}, {}};
      if (static_cast<size_t>(outs[i].id) >= first_slot)
        out_.program.slots[static_cast<size_t>(outs[i].id)].name = name;
    }
    if (region >= 0)  // statistics are not part of it
      regions_[region].emplace_back(first, instrs.size());
    return outs;
  }

  // The number of the recompute region of a call, or -1; each turn is a region of its own.
  int region_of(const Node& node, int turn) {
    const int region = where_.recompute_region(node);
    if (region < 0) return -1;
    return region_ids_.try_emplace({region, turn}, static_cast<int>(region_ids_.size()))
        .first->second;
  }

  // The arguments of this device's part of a node, and the types of its results.
  std::vector<NamedArg> local_call(const Node& node, int turn, CallSite& site,
                                   std::vector<TensorType>& types) {
    const NodePlacement* placed = where_.planned() ? where_.placed(node) : nullptr;
    const bool several = turns_of(node) > 1;
    std::vector<NamedArg> args = placed == nullptr ? node.args
                                 : several         ? placed->turn_args[static_cast<size_t>(turn)]
                                                   : placed->args;
    size_t i = 0;
    for_each_ref(args, [&](Ref& ref) {
      if (placed != nullptr && i == 0) {
        const Shape& shape = graph_.value(ref).type.shape;
        auto box = placed->inputs[0].layout.piece(shape, where_.device()).box;
        if (several) take_turn(box, placed->turn_inputs[0], turn, placed->turns);
        Shape local;
        for (const Range& r : box) local.push_back(r.length());
        if (local != shape) {
          for (const Range& r : box) site.offset.push_back(r.start);
          site.full = shape;
        }
      }
      ref = several             ? turn_of(ref, *placed, i, turn)
            : placed != nullptr ? slot_for(ref, placed->inputs[i])
                                : slot_of(ref);
      ++i;
    });
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const TensorType& whole = graph_.value({node.outputs[k]}).type;
      auto box = where_.made(node, k).piece(whole.shape, where_.device()).box;
      if (several) take_turn(box, placed->turn_outputs[k], turn, placed->turns);
      Shape local;
      for (const Range& r : box) local.push_back(r.length());
      types.push_back({std::move(local), whole.dtype});
    }
    return args;
  }

  // --- parts that run one after another on this device
  // -----------------------------------------------------------------------------

  int turns_of(const Node& node) const { return where_.planned() ? where_.placed(node)->turns : 1; }

  static void take_turn(std::vector<Range>& box, const TurnCut& cut, int turn, int turns) {
    if (cut.kind != annotate::TensorSplit::Kind::dims) return;
    Range& range = box.at(static_cast<size_t>(cut.dim));
    range = part_of(range, turn, turns);
  }

  // The nodes from `first` on that run turn by turn together: each part goes through all of them
  // before the next starts. A node that needs more of an operand than its own turn's part of it
  // ends the run. A node of one turn is alone.
  std::vector<const Node*> run_from(size_t first) {
    std::vector<const Node*> run{&graph_.nodes[first]};
    const int turns = turns_of(*run[0]);
    std::map<int, std::pair<Layout, TurnCut>> made;
    const auto note = [&](const Node& node) {
      const NodePlacement& placed = *where_.placed(node);
      for (size_t k = 0; k < node.outputs.size(); ++k)
        made[node.outputs[k]] = {placed.outputs[k], placed.turn_outputs[k]};
    };
    if (turns > 1) note(*run[0]);
    for (size_t i = first + 1; turns > 1 && i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!where_.is_here(node)) continue;
      if (turns_of(node) != turns || updates_buffer(*run.back())) break;
      const NodePlacement& placed = *where_.placed(node);
      const auto inputs = graph::inputs_of(node);
      bool fits = true;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const auto it = made.find(inputs[k]);
        if (it == made.end()) continue;
        const auto& [layout, cut] = it->second;
        const bool partial = !Distribution::partial_axes(placed.inputs[k]).empty();
        fits = fits && !partial && cut.kind != annotate::TensorSplit::Kind::value &&
               cut.kind == placed.turn_inputs[k].kind && cut.dim == placed.turn_inputs[k].dim &&
               same_pieces(layout, placed.inputs[k].layout, graph_.value({inputs[k]}).type.shape);
      }
      if (!fits) break;
      run.push_back(&node);
      note(node);
    }
    return run;
  }

  bool updates_buffer(const Node& node) const {
    return std::any_of(graph_.buffer_updates.begin(), graph_.buffer_updates.end(),
                       [&](const auto& u) { return graph_.value({u.second}).producer == node.id; });
  }

  void call_in_turns(const std::vector<const Node*>& run, std::vector<Instr>& instrs,
                     const std::vector<int>& calls_in_module) {
    // What comes from outside is cut before the first turn, outside of what is run again.
    std::set<int> inside;
    for (const Node* node : run) inside.insert(node->outputs.begin(), node->outputs.end());
    for (const Node* node : run) {
      e_.set_origin({node->id, node->module, node->loc});
      const auto inputs = graph::inputs_of(*node);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (!inside.contains(inputs[i])) turn_of({inputs[i]}, *where_.placed(*node), i, 0);
    }
    const int turns = turns_of(*run[0]);
    for (int turn = 0; turn < turns; ++turn)
      for (const Node* node : run) call(*node, turn, instrs, calls_in_module);
    for (const Node* node : run) {
      e_.set_origin({node->id, node->module, node->loc});
      for (size_t k = 0; k < node->outputs.size(); ++k) join(*node, k);
    }
    in_turns_.clear();
  }

  // What turn `turn` of a node reads of its operand `i`: a part that the same turn made, or a cut
  // of what this device holds.
  Ref turn_of(Ref value, const NodePlacement& placed, size_t i, int turn) {
    if (const auto it = in_turns_.find(value.id); it != in_turns_.end())
      return it->second.at(static_cast<size_t>(turn));
    const Ref all = slot_for(value, placed.inputs[i]);
    const TurnCut& cut = placed.turn_inputs[i];
    if (cut.kind == annotate::TensorSplit::Kind::replicate) {
      if (!cut.keeps_gradient || turn == 0) return all;
      return e_("aten::detach", all);
    }
    auto& parts = cuts_[{all.id, cut.dim, placed.turns}];
    if (parts.empty()) {
      const TensorType type = e_.type(all);
      Shape sizes;
      std::vector<TensorType> types;
      for (int j = 0; j < placed.turns; ++j) {
        const auto d = static_cast<size_t>(cut.dim);
        sizes.push_back(part_of({0, type.shape[d]}, j, placed.turns).length());
        types.push_back(type);
        types.back().shape[d] = sizes.back();
      }
      parts = tape_.apply(
          "aten::split_with_sizes",
          {{"self", all}, {"split_sizes", sizes}, {"dim", static_cast<int64_t>(cut.dim)}},
          CallSite{}, &types);
    }
    return parts[static_cast<size_t>(turn)];
  }

  // The turns' parts of a result as one tensor.
  void join(const Node& node, size_t k) {
    const int value = node.outputs[k];
    const std::vector<Ref> parts = in_turns_.at(value);
    const TurnCut& cut = where_.placed(node)->turn_outputs[k];
    Ref whole = parts[0];
    const TensorType& global = graph_.value({value}).type;
    const std::vector<TensorType> types{
        {where_.made(node, k).local_shape(global.shape, where_.device()), global.dtype}};
    if (cut.kind == annotate::TensorSplit::Kind::dims)
      whole = tape_
                  .apply("aten::cat", {{"tensors", parts}, {"dim", static_cast<int64_t>(cut.dim)}},
                         CallSite{}, &types)
                  .front();
    if (cut.kind == annotate::TensorSplit::Kind::value)
      for (size_t j = 1; j < parts.size(); ++j)
        whole = tape_
                    .apply("aten::add.Tensor",
                           {{"self", whole}, {"other", parts[j]}, {"alpha", int64_t{1}}},
                           CallSite{}, &types)
                    .front();
    held_[static_cast<size_t>(value)] = {{where_.made(node, k), {}}, whole, {}, {}};
  }

  // --- between stages
  // -----------------------------------------------------------------------------

  // One tag a value, reading stage and direction: messages of a tag come in order of micro-batch.
  int64_t tag(int value, int stage, bool gradient) const {
    return (static_cast<int64_t>(value) * options_.plan->stages + stage) * 2 + (gradient ? 1 : 0);
  }

  void emit_send(Ref x, Shape moves, int64_t tag) {
    if (moves.empty()) return;
    e_.call_typed("comm::send", {{"self", x}, {"moves", std::move(moves)}, {"tag", tag}}, {});
  }

  Ref emit_receive(const TensorType& type, Shape moves, int64_t tag, const std::string& name) {
    const Ref x = e_.call_typed("comm::receive",
                                {{"shape", type.shape},
                                 {"moves", std::move(moves)},
                                 {"tag", tag},
                                 {"dtype", type.dtype}},
                                {type})
                      .front();
    out_.program.slots.back().name = name;
    return x;
  }

  // What earlier stages made.
  void receive_values(std::vector<Instr>& instrs) {
    e_.write_to(instrs);
    for (int id : where_.arrivals()) {
      const auto& value = graph_.value({id});
      const Layout from = where_.departure(id), to = where_.arrival(id, where_.stage());
      const auto& maker = graph_.nodes[static_cast<size_t>(value.producer)];
      e_.set_origin({maker.id, maker.module, maker.loc});
      const Ref slot = emit_receive(
          {to.local_shape(value.type.shape, where_.device()), value.type.dtype},
          where_.receives(from, to, value.type.shape), tag(id, where_.stage(), false), "received");
      held_[static_cast<size_t>(id)] = {{to, {}}, slot, {}, {}};
      if (graph_.training && value.requires_grad) {
        tape_.require_grad(slot);
        arrived_.push_back({id, slot});
      }
    }
  }

  // What later stages read.
  void send_value(int id) {
    const auto stages = where_.other_stages(id);
    if (stages.empty()) return;
    const auto& value = graph_.value({id});
    const Layout from = where_.departure(id);
    const Ref slot = slot_for({id}, {from, std::vector<bool>(from.axes.size())});
    for (int stage : stages)
      emit_send(slot, where_.sends(from, where_.arrival(id, stage), value.type.shape),
                tag(id, stage, false));
    if (graph_.training && value.requires_grad) sent_.push_back({id, slot});
  }

  // Gradients of what later stages read, each the seed of its value.
  void receive_gradients(std::vector<std::pair<Ref, Ref>>& seeds) {
    for (const auto& [id, slot] : sent_) {
      const Shape& shape = graph_.value({id}).type.shape;
      const Layout to = where_.departure(id);
      const auto& maker = graph_.nodes[static_cast<size_t>(graph_.value({id}).producer)];
      e_.set_origin({maker.id, maker.module, maker.loc});
      for (int stage : where_.other_stages(id))
        seeds.emplace_back(
            slot, emit_receive(e_.type(slot), where_.receives(where_.arrival(id, stage), to, shape),
                               tag(id, stage, true), "d_received"));
    }
  }

  // Gradients of what earlier stages made; zeros where no path leads to the loss.
  void send_gradients(const std::vector<Ref>& gradients) {
    for (const auto& [id, slot] : arrived_) {
      const Shape& shape = graph_.value({id}).type.shape;
      const auto& maker = graph_.nodes[static_cast<size_t>(graph_.value({id}).producer)];
      e_.set_origin({maker.id, maker.module, maker.loc});
      Ref gradient = static_cast<size_t>(slot.id) < gradients.size()
                         ? gradients[static_cast<size_t>(slot.id)]
                         : Ref{};
      if (gradient.id < 0) gradient = e_.zeros(slot, e_.type(slot));
      emit_send(gradient,
                where_.sends(where_.arrival(id, where_.stage()), where_.departure(id), shape),
                tag(id, where_.stage(), true));
    }
  }

  // The new content of a buffer is handed over where it is made.
  void update_buffers(const Node& node, std::vector<Instr>& instrs) {
    for (auto [buffer, value] : graph_.buffer_updates) {
      if (std::find(node.outputs.begin(), node.outputs.end(), value) == node.outputs.end())
        continue;
      Instr instr;
      instr.kind = InstrKind::update;
      const OperandUse home{
          held_[static_cast<size_t>(buffer)].use.layout,
          std::vector<bool>(held_[static_cast<size_t>(buffer)].use.layout.axes.size())};
      instr.args = {{"value", slot_for({value}, home)}};
      instr.target = slot_of({buffer}).id;
      instr.node = node.id;
      instr.module = node.module;
      instr.loc = node.loc;
      instrs.push_back(std::move(instr));
    }
  }

  // What has no name yet is called after its operator.
  void name_slots(const std::vector<Instr>& instrs, size_t first) {
    for (size_t i = first; i < instrs.size(); ++i)
      for (int out : instrs[i].outs) {
        if (out < 0) continue;
        std::string& name = out_.program.slots[static_cast<size_t>(out)].name;
        if (!name.empty()) continue;
        std::string op = instrs[i].op.substr(instrs[i].op.rfind("::") + 2);
        op = op.substr(0, op.find('.'));
        if (const size_t end = op.find("_backward"); end != std::string::npos)
          op = "d_" + op.substr(0, end);
        name = op;
      }
  }

  Nest convert(const Nest& nest, Segment& segment) {
    Nest result = nest;
    if (const auto* ref = std::get_if<Ref>(&nest.node)) {
      const Ref slot = slot_for(*ref, where_.whole());
      result.node = slot;
      auto& outs = segment.outputs;
      if (std::find(outs.begin(), outs.end(), slot.id) == outs.end()) outs.push_back(slot.id);
    } else if (auto* fields =
                   std::get_if<std::vector<std::pair<std::string, Nest>>>(&result.node)) {
      for (auto& [key, field] : *fields) field = convert(field, segment);
    }
    return result;
  }

  Ref loss() const {
    const Ref* ref = graph_.outputs.empty() ? nullptr : std::get_if<Ref>(&graph_.outputs[0].node);
    if (ref == nullptr)
      throw Error(ErrorKind::model, "[lower.loss] forward returned no tensor as its first result",
                  "return the loss first: return loss, { … }");
    const TensorType& type = graph_.value(*ref).type;
    if (numel(type.shape) != 1 || !is_floating(type.dtype))
      throw Error(
          ErrorKind::model,
          fmt::format("[lower.loss] the loss is {}; expected one floating number", to_string(type)),
          "reduce it: loss:mean()");
    return std::get<Ref>(out_.program.outputs[0].node);
  }

  void backward() {
    std::vector<Instr> instrs;
    e_.write_to(instrs);
    std::vector<std::pair<Ref, Ref>> seeds;
    Ref seed;
    if (options_.embedded) {
      for (size_t i = 0; i < out_.program.outputs.size(); ++i)
        seed_results(out_.program.outputs[i], std::to_string(i + 1), seeds);
    } else if (where_.is_last()) {
      const Ref loss = this->loss();
      seed = e_.new_slot(e_.type(loss), SlotRole::input, "seed");
      if (tape_.requires_grad(loss)) seeds.emplace_back(loss, seed);
    }
    receive_gradients(seeds);
    tape_.replay = [&](int region) { return replay(region, instrs); };
    tape_.on_fallback = [&](std::string_view op) {
      out_.fallbacks.push_back({std::string(op), e_.origin().module, e_.origin().loc});
    };
    const auto gradients =
        tape_.reverse(seeds, {[&](Ref slot) { return role(slot) == SlotRole::parameter; },
                              [&](Ref slot, Ref gradient) {
                                Instr instr;
                                instr.kind = InstrKind::accumulate;
                                instr.args = {{"value", gradient}};
                                instr.target = slot.id;
                                instr.node = e_.origin().node;
                                instr.module = e_.origin().module;
                                instr.loc = e_.origin().loc;
                                instrs.push_back(std::move(instr));
                              }});
    send_gradients(gradients);
    if (options_.embedded) give_back(seeds, gradients, instrs);
    name_slots(instrs, 0);
    Segment& segment = add_segment("backward");
    if (seed.id >= 0) segment.inputs.push_back(seed.id);
    for (const auto& [name, slot] : out_.program.seeds) segment.inputs.push_back(slot);
    for (const auto& [name, slot] : out_.program.input_gradients) segment.outputs.push_back(slot);
    segment.instrs = std::move(instrs);
  }

  // A seed for every result that depends on something that wants a gradient.
  void seed_results(const Nest& nest, const std::string& name,
                    std::vector<std::pair<Ref, Ref>>& seeds) {
    if (const auto* ref = std::get_if<Ref>(&nest.node)) {
      if (!tape_.requires_grad(*ref) || !is_floating(e_.dtype(*ref))) return;
      const Ref seed = e_.new_slot(e_.type(*ref), SlotRole::input, "seed." + name);
      seeds.emplace_back(*ref, seed);
      out_.program.seeds.emplace_back(name, seed.id);
    } else if (const auto* fields =
                   std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node)) {
      for (const auto& [key, field] : *fields)
        seed_results(field, fmt::format("{}.{}", name, key), seeds);
    }
  }

  // Gradients of inputs become results of backward; a parameter that forward returned as it is gets
  // its seed.
  void give_back(const std::vector<std::pair<Ref, Ref>>& seeds, const std::vector<Ref>& gradients,
                 std::vector<Instr>& instrs) {
    for (const auto& [result, seed] : seeds) {
      if (role(result) != SlotRole::parameter) continue;
      Instr instr;
      instr.kind = InstrKind::accumulate;
      instr.args = {{"value", seed}};
      instr.target = result.id;
      instrs.push_back(std::move(instr));
    }
    for (int id : graph_.inputs) {
      const Ref slot = slot_of({id});
      const size_t at = static_cast<size_t>(slot.id);
      if (at < gradients.size() && gradients[at].id >= 0)
        out_.program.input_gradients.emplace_back(graph_.value({id}).name, gradients[at].id);
    }
  }

  SlotRole role(Ref slot) const { return out_.program.slot(slot.id).role; }

  // Writes a recompute region's forward calls again, on new slots.
  std::map<int, Ref> replay(int region, std::vector<Instr>& instrs) {
    std::map<int, Ref> moved;
    const std::vector<Instr>& forward = out_.program.segments[0].instrs;
    for (auto [first, last] : regions_.at(region))
      for (size_t i = first; i < last; ++i) {
        Instr copy = forward[i];
        for_each_ref(copy.args, [&](Ref& ref) {
          if (const auto it = moved.find(ref.id); it != moved.end()) ref = it->second;
        });
        for (int& out : copy.outs) {
          const Slot old = out_.program.slot(out);
          const Ref fresh = e_.new_slot(old.type, old.role, old.name);
          moved[out] = fresh;
          out = fresh.id;
        }
        instrs.push_back(std::move(copy));
      }
    return moved;
  }

  Segment& add_segment(const std::string& name) {
    out_.program.segments.emplace_back().name = name;
    out_.program.schedule.push_back({name, 0});
    return out_.program.segments.back();
  }

  void finish() {
    Program& program = out_.program;
    fold_views(program);
    if (where_.planned()) out_.homes = std::make_shared<const Homes>(std::move(homes_));
    remove_dead_calls(program);
    gather_again(program);
    find_saved(program);
    reuse_memory(program);
    find_blocks(program);
    insert_releases(program);
    check(program);
  }

  const Graph& graph_;
  Options options_;
  Lowered out_;
  Emitter e_;
  Tape tape_;
  Distribution where_;
  Exchange exchange_;
  std::vector<std::pair<int, Ref>> arrived_, sent_;  // values between stages that need gradients
  struct Held {
    OperandUse use;
    Ref slot;
    std::optional<Shard> shard = {};  // of a parameter that rests in shards
    Ref gathered = {};                // all of it, once it is used
  };
  std::vector<Held> held_;  // by value: as it was made
  std::map<std::string, Ref> converted_;
  Homes homes_;
  std::map<int, std::vector<std::pair<size_t, size_t>>> regions_;
  std::map<std::pair<int, int>, int> region_ids_;  // recompute region, turn → number
  std::map<int, std::vector<Ref>> in_turns_;       // values of the run in work, by turn
  std::map<std::tuple<int, int, int>, std::vector<Ref>> cuts_;  // slot, dim, turns → parts
};

}  // namespace

Lowered lower(const Graph& graph, const Options& options) {
  return Lowering(graph, options).run();
}

}  // namespace nns::lower
