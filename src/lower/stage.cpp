#include "lower/stage.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "lower/part.h"
#include "lower/running.h"
#include "lower/split.h"

namespace nns::lower {

using graph::Graph;
using graph::Nest;
using graph::Node;

namespace {

// Tags of a micro-batch start at ctx.tag.
const graph::Symbol kFirstTag{"$tag"};
const graph::Symbol kEmpty{"$empty"};  // whether the micro-batch counts for nothing

// Name of a value for generated code: the module that makes just this call, or the operator.
std::string hint(const Node& node, const std::vector<int>& calls_in_module_of) {
  std::string op = node.op.substr(node.op.find("::") + 2);
  op = op.substr(0, op.find('.'));
  if (calls_in_module_of[static_cast<size_t>(node.id)] != 1 || node.module.empty()) return op;
  std::string last = node.module.substr(node.module.rfind('.') + 1);
  const bool numeric = last.find_first_not_of("0123456789") == std::string::npos;
  return numeric ? op : last;
}

}  // namespace

// The slot that holds a value as it was made; a parameter that rests in shards is gathered at its
// first use.
Ref StageLowering::slot_of(Ref value) {
  Held& held = held_.at(static_cast<size_t>(value.id));
  if (!held.shard) return held.slot;
  if (held.gathered.id < 0) {
    const auto& v = graph_.value(value);
    const TensorType type{held.use.layout.local_shape(v.type.shape, where_.device()), v.type.dtype};
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
Ref StageLowering::slot_for(Ref value, const OperandUse& use) {
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
  const Ref made =
      exchange_.convert(rests ? exchange_.owned(slot, held.use) : slot, held.use.layout, use, type);
  converted_.emplace(key, made);
  return made;
}

StageLowering::StageLowering(const Graph& graph, Distribution where, Emitter& emitter, Lowered& out,
                             std::string suffix)
    : graph_(graph),
      where_(std::move(where)),
      e_(emitter),
      out_(out),
      suffix_(std::move(suffix)),
      tape_(e_, graph.training),
      exchange_(tape_, e_, where_.device(), where_.first_rank()),
      held_(graph.values.size()) {}

void StageLowering::bind_leaf(int value, const OperandUse& use, Ref slot,
                              std::optional<Shard> shard) {
  held_[static_cast<size_t>(value)] = {use, slot, std::move(shard), {}};
  const SlotRole role = this->role(slot);
  if (graph_.value({value}).requires_grad &&
      (role == SlotRole::parameter || (role == SlotRole::input && out_.program.embedded)))
    tape_.require_grad(slot);
}

void StageLowering::forward() {
  forward_ = out_.program.segments.size();
  Segment& segment = add_segment(SegmentKind::forward);
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
  for (const Nest& nest : graph_.outputs)
    out_.program.outputs.push_back(convert(nest, segment.outputs));
}

// Makes this device's call of a node, in turn `turn` if it has several, and returns its results.
std::vector<Ref> StageLowering::call(const Node& node, int turn, std::vector<Instr>& instrs,
                                     const std::vector<int>& calls_in_module) {
  e_.set_origin({node.id, node.module, node.loc});
  const size_t first = instrs.size();
  const size_t first_slot = out_.program.slots.size();
  const int region = region_of(node, turn);
  CallSite site{node.ordinal, node.context.grad_enabled, region, {}, {}};
  std::vector<TensorType> types;
  std::vector<NamedArg> args = local_call(node, turn, site, types);
  std::vector<Ref> operands;
  for_each_ref(args, [&](Ref ref) { operands.push_back(ref); });
  emit_hook(node, true, std::move(operands));
  std::optional<std::vector<Ref>> part;
  if (const NodePlacement* placed = where_.planned() ? where_.placed(node) : nullptr)
    part = emit_part({graph_, node, *placed, exchange_, where_.device()}, args, site, tape_, e_);
  const std::vector<Ref> outs =
      part ? std::move(*part) : tape_.apply(node.op, std::move(args), site, &types);
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
  emit_hook(node, false, outs);
  if (region >= 0)  // statistics are not part of it
    regions_[region].emplace_back(first, instrs.size());
  return outs;
}

// The number of the recompute region of a call, or -1; each turn is a region of its own.
int StageLowering::region_of(const Node& node, int turn) {
  const int region = where_.recompute_region(node);
  if (region < 0) return -1;
  return region_ids_.try_emplace({region, turn}, static_cast<int>(region_ids_.size()))
      .first->second;
}

// The arguments of this device's part of a node, and the types of its results.
std::vector<NamedArg> StageLowering::local_call(const Node& node, int turn, CallSite& site,
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

// The person's function before or after a call, if the plan has one.
void StageLowering::emit_hook(const Node& node, bool before, std::vector<Ref> tensors) {
  if (!where_.planned()) return;
  const plan::Hooks& hooks = where_.fitted().ops[static_cast<size_t>(node.id)].hooks;
  const std::string& name = before ? hooks.before : hooks.after;
  if (name.empty()) return;
  e_.call_typed(before ? "hook::before" : "hook::after",
                {{"name", name}, {"meta", hooks.meta}, {"tensors", std::move(tensors)}}, {});
}

void StageLowering::emit_send(Ref x, Shape moves, int64_t tag, bool gradient) {
  if (moves.empty()) return unsent_.push_back(x.id);
  std::vector<NamedArg> args{
      {"self", x}, {"moves", std::move(moves)}, {"tag", tag}, {"first", kFirstTag}};
  if (gradient) args.push_back({"empty", kEmpty});
  e_.call_typed("comm::send", std::move(args), {});
}

Ref StageLowering::emit_receive(const TensorType& type, Shape moves, int64_t tag,
                                const std::string& name) {
  const Ref x = e_.call_typed("comm::receive",
                              {{"shape", type.shape},
                               {"moves", std::move(moves)},
                               {"tag", tag},
                               {"first", kFirstTag},
                               {"dtype", type.dtype}},
                              {type})
                    .front();
  out_.program.slots.back().name = name;
  return x;
}

// What earlier stages made.
void StageLowering::receive_values(std::vector<Instr>& instrs) {
  e_.write_to(instrs);
  for (int id : where_.arrivals()) {
    exchange_.count_message();
    const auto& value = graph_.value({id});
    const Layout from = where_.departure(id), to = where_.arrival(id, where_.stage());
    const auto& maker = graph_.nodes[static_cast<size_t>(value.producer)];
    e_.set_origin({maker.id, maker.module, maker.loc});
    const Ref slot =
        emit_receive({to.local_shape(value.type.shape, where_.device()), value.type.dtype},
                     where_.receives(from, to, value.type.shape),
                     where_.tag(id, where_.stage(), false), "received");
    held_[static_cast<size_t>(id)] = {{to, {}}, slot, {}, {}};
    if (graph_.training && value.requires_grad) {
      tape_.require_grad(slot);
      arrived_.push_back({id, slot});
    }
  }
}

// What later stages read.
void StageLowering::send_value(int id) {
  const auto stages = where_.other_stages(id);
  if (stages.empty()) return;
  const auto& value = graph_.value({id});
  const Layout from = where_.departure(id);
  const Ref slot = slot_for({id}, {from, std::vector<bool>(from.axes.size())});
  for (int stage : stages) {
    exchange_.count_message();
    emit_send(slot, where_.sends(from, where_.arrival(id, stage), value.type.shape),
              where_.tag(id, stage, false));
  }
  if (graph_.training && value.requires_grad) sent_.push_back({id, slot});
}

// Gradients of what later stages read, each the seed of its value.
void StageLowering::receive_gradients(std::vector<std::pair<Ref, Ref>>& seeds) {
  for (const auto& [id, slot] : sent_) {
    const Shape& shape = graph_.value({id}).type.shape;
    const Layout to = where_.departure(id);
    const auto& maker = graph_.nodes[static_cast<size_t>(graph_.value({id}).producer)];
    e_.set_origin({maker.id, maker.module, maker.loc});
    for (int stage : where_.other_stages(id))
      seeds.emplace_back(
          slot, emit_receive(e_.type(slot), where_.receives(where_.arrival(id, stage), to, shape),
                             where_.tag(id, stage, true), "d_received"));
  }
}

// Gradients of what earlier stages made; zeros where no path leads to the loss.
void StageLowering::send_gradients(const std::vector<Ref>& gradients) {
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
              where_.tag(id, where_.stage(), true), true);
  }
}

// The new content of a buffer is handed over where it is made.
void StageLowering::update_buffers(const Node& node, std::vector<Instr>& instrs) {
  for (auto [buffer, value] : graph_.buffer_updates) {
    if (std::find(node.outputs.begin(), node.outputs.end(), value) == node.outputs.end()) continue;
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
    if (const auto factor = decay_of(buffer, value)) instr.args.push_back({"decay", *factor});
    instrs.push_back(std::move(instr));
  }
}

// How much of a buffer its new content keeps, by which units that each run some of the
// micro-batches put their updates together.
std::optional<double> StageLowering::decay_of(int buffer, int value) const {
  const auto factor = kept(graph_, buffer, value);
  if (where_.units() == 1) return factor;
  const std::string hint = fmt::format(
      "run it as one scale unit, which sees the micro-batches in order: pas_policy=data "
      "compute_config.plan_ngpus={}",
      where_.world());
  const std::string& name = graph_.value({buffer}).name;
  if (is_read(graph_, buffer))
    throw Error(ErrorKind::plan,
                fmt::format("[lower.buffer] results depend on what {} held, which every "
                            "micro-batch writes; {} scale units cannot see each other's writes",
                            name, where_.units()),
                hint);
  if (!factor)
    throw Error(ErrorKind::plan,
                fmt::format("[lower.buffer] {} is written as no number · {} + what a micro-batch "
                            "adds (a running average, a sum, a count); {} scale units cannot put "
                            "their updates together",
                            name, name, where_.units()),
                hint);
  return factor;
}

// What has no name yet is called after its operator.
void StageLowering::name_slots(const std::vector<Instr>& instrs, size_t first) {
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

Nest StageLowering::convert(const Nest& nest, std::vector<int>& outputs) {
  Nest result = nest;
  if (const auto* ref = std::get_if<Ref>(&nest.node)) {
    const Ref slot = slot_for(*ref, where_.whole());
    result.node = slot;
    if (std::find(outputs.begin(), outputs.end(), slot.id) == outputs.end())
      outputs.push_back(slot.id);
  } else if (auto* fields = std::get_if<std::vector<std::pair<std::string, Nest>>>(&result.node)) {
    for (auto& [key, field] : *fields) field = convert(field, outputs);
  }
  return result;
}

Ref StageLowering::loss() const {
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

void StageLowering::backward(bool split) {
  std::vector<Instr> instrs;
  e_.write_to(instrs);
  std::vector<std::pair<Ref, Ref>> seeds;
  Ref seed;
  if (out_.program.embedded) {
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
  if (out_.program.embedded) give_back(seeds, gradients, instrs);
  name_slots(instrs, 0);
  Segment& segment = add_segment(SegmentKind::backward);
  if (seed.id >= 0) segment.inputs.push_back(seed.id);
  for (const auto& [name, slot] : out_.program.seeds) segment.inputs.push_back(slot);
  for (const auto& [name, slot] : out_.program.input_gradients) segment.outputs.push_back(slot);
  segment.instrs = std::move(instrs);
  if (!split) return;
  // Gradients of activations, not of what is made of weights alone.
  std::vector<int> roots;
  const auto from_weights = made_of_weights(out_.program, out_.program.segments[forward_]);
  for (size_t slot = 0; slot < gradients.size(); ++slot)
    if (gradients[slot].id >= 0 && !from_weights[slot]) roots.push_back(gradients[slot].id);
  std::vector<Instr> rest = take_weight_part(out_.program, segment.instrs, roots);
  add_segment(SegmentKind::weight).instrs = std::move(rest);
}

// Writes a recompute region's forward calls again, on new slots.
std::map<int, Ref> StageLowering::replay(int region, std::vector<Instr>& instrs) {
  std::map<int, Ref> moved;
  const std::vector<Instr>& forward = out_.program.segments[forward_].instrs;
  for (auto [first, last] : regions_.at(region))
    for (size_t i = first; i < last; ++i) {
      if (forward[i].op.starts_with("hook::")) continue;  // it has run
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

Segment& StageLowering::add_segment(SegmentKind kind) {
  static constexpr const char* names[] = {"forward", "backward", "weight"};
  Segment& segment = out_.program.segments.emplace_back();
  segment.name = names[static_cast<size_t>(kind)] + suffix_;
  segment.kind = kind;
  segment.stage = where_.stage();
  return segment;
}

}  // namespace nns::lower
