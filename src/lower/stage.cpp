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
  if (!held.shard || held.shard->zero != plan::Zero::weights) return held.slot;
  if (held.gathered.id < 0) {
    const auto& v = graph_.value(value);
    const TensorType type{peers_.local_shape(held.use.layout, v.type.shape), v.type.dtype};
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
    if (sights_) sights_->see(value.id, held.gathered.id, held.use, e_.origin().node, false);
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
  const auto axes = partial_axes(use);
  if (rests && same_pieces(held.use.layout, use.layout, type.shape) &&
      peers_.alike([&](int device) {
        return group_of(held.use.layout, partial_axes(held.use), device) ==
               group_of(use.layout, axes, device);
      }))
    return slot;
  const std::string key =
      fmt::format("{} {} {}", value.id, to_string(use.layout), fmt::join(axes, ","));
  const auto known = converted_.find(key);
  if (known != converted_.end()) return known->second;
  const size_t first = out_.program.slots.size();
  const Ref made =
      exchange_.convert(rests ? exchange_.owned(slot, held.use) : slot, held.use.layout, use, type);
  converted_.emplace(key, made);
  if (sights_ && made.id != slot.id) {
    sights_->bring(value.id, first, out_.program.slots.size());
    sights_->see(value.id, made.id, use, e_.origin().node, false);
  }
  return made;
}

StageLowering::StageLowering(const Graph& graph, Distribution where, Peers& peers, Emitter& emitter,
                             Lowered& out, std::string suffix, Sights* sights)
    : graph_(graph),
      where_(std::move(where)),
      layouts_(where_.layouts()),
      peers_(peers),
      e_(emitter),
      out_(out),
      suffix_(std::move(suffix)),
      tape_(e_, graph.training),
      exchange_(tape_, e_, peers),
      sights_(sights),
      held_(graph.values.size()) {}

void StageLowering::bind_leaf(int value, const OperandUse& use, Ref slot,
                              std::optional<Shard> shard) {
  if (shard && shard->zero == plan::Zero::gradients) scatters_[slot.id] = *shard;
  hold(value, use, slot, false);
  held_[static_cast<size_t>(value)].shard = std::move(shard);
  const SlotRole role = this->role(slot);
  if (graph_.value({value}).requires_grad &&
      (role == SlotRole::parameter || (role == SlotRole::input && out_.program.embedded)))
    tape_.require_grad(slot);
}

// From here on the slot is what holds the value.
void StageLowering::hold(int value, const OperandUse& use, Ref slot, bool made) {
  held_[static_cast<size_t>(value)] = {use, slot, {}, {}};
  if (sights_) sights_->see(value, slot.id, use, -1, made);
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
  copy_leaves_to_buffers(segment.instrs);
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
  if (const NodePlacement* placed = this->placed(node))
    part = emit_part({graph_, node, *placed, exchange_}, args, site, tape_, e_);
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
      hold(value, {layouts_.made(node, i), {}}, outs[i], true);
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

// The arguments of the part of a node; those that say where a draw lies may differ among peers.
std::vector<NamedArg> StageLowering::args_of(const Node& node, int turn) {
  const NodePlacement* placed = this->placed(node);
  if (placed == nullptr) return node.args;
  const auto of = [&](int device) {
    return std::move(args_on(graph_, node, *placed, device)[static_cast<size_t>(turn)]);
  };
  const auto is_offset = [](const NamedArg& a) {
    return a.name == "offset" && std::holds_alternative<Shape>(a.value);
  };
  peers_.alike([&](int device) {
    std::string text;
    for (const NamedArg& a : of(device)) text += is_offset(a) ? "|" : graph::to_text(a.value) + "|";
    return text;
  });
  std::vector<NamedArg> args = of(peers_.device());
  for (size_t i = 0; i < args.size(); ++i)
    if (is_offset(args[i]))
      args[i].value =
          peers_.numbers([&](int device) { return std::get<Shape>(of(device)[i].value); });
  return args;
}

// Where the first operand of a call lies in the unsplit one.
void StageLowering::place_draw(const NodePlacement& placed, const Shape& shape, int turn,
                               CallSite& site) {
  const TurnCut* cut = placed.turns > 1 ? &placed.turn_inputs[0] : nullptr;
  const Layout& layout = placed.inputs[0].layout;
  if (local_shape(layout, shape, cut, turn, placed.turns) == shape) return;
  site.full = shape;
  site.offset = peers_.numbers([&](int device) {
    auto box = layout.piece(shape, device).box;
    if (cut != nullptr) take_turn(box, *cut, turn, placed.turns);
    Shape starts;
    for (const Range& r : box) starts.push_back(r.start);
    return starts;
  });
}

// Of the part of one turn, where a device has several.
Shape StageLowering::local_shape(const Layout& layout, const Shape& shape, const TurnCut* cut,
                                 int turn, int turns) {
  return peers_.alike([&](int device) {
    auto box = layout.piece(shape, device).box;
    if (cut != nullptr) take_turn(box, *cut, turn, turns);
    Shape local;
    for (const Range& r : box) local.push_back(r.length());
    return local;
  });
}

// The arguments of this device's part of a node, and the types of its results.
std::vector<NamedArg> StageLowering::local_call(const Node& node, int turn, CallSite& site,
                                                std::vector<TensorType>& types) {
  const NodePlacement* placed = this->placed(node);
  const bool several = turns_of(node) > 1;
  std::vector<NamedArg> args = args_of(node, turn);
  size_t i = 0;
  for_each_ref(args, [&](Ref& ref) {
    if (placed != nullptr && i == 0) place_draw(*placed, graph_.value(ref).type.shape, turn, site);
    ref = several             ? turn_of(ref, *placed, i, turn)
          : placed != nullptr ? slot_for(ref, placed->inputs[i])
                              : slot_of(ref);
    ++i;
  });
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const TensorType& whole = graph_.value({node.outputs[k]}).type;
    types.push_back(
        {local_shape(layouts_.made(node, k), whole.shape,
                     several ? &placed->turn_outputs[k] : nullptr, turn, turns_of(node)),
         whole.dtype});
  }
  return args;
}

// The user's function before or after a call, if the plan has one.
void StageLowering::emit_hook(const Node& node, bool before, std::vector<Ref> tensors) {
  if (!where_.planned()) return;
  const plan::Hooks& hooks = layouts_.fitted().ops[static_cast<size_t>(node.id)].hooks;
  const std::string& name = before ? hooks.before : hooks.after;
  if (name.empty()) return;
  e_.call_typed(before ? "hook::before" : "hook::after",
                {{"name", name}, {"meta", hooks.meta}, {"tensors", std::move(tensors)}}, {});
}

// The new content of a buffer is handed over where it is made.
void StageLowering::update_buffers(const Node& node, std::vector<Instr>& instrs) {
  for (auto [buffer, value] : graph_.buffer_updates)
    if (std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end()) {
      const Layout& home = held_[static_cast<size_t>(buffer)].use.layout;
      update_buffer(buffer, value, slot_for({value}, {home, std::vector<bool>(home.axes.size())}),
                    instrs);
    }
}

// No call makes the new content where it is an input, or another leaf, as it is: the buffer gets a
// copy, since who gave the input keeps it.
void StageLowering::copy_leaves_to_buffers(std::vector<Instr>& instrs) {
  for (auto [buffer, value] : graph_.buffer_updates) {
    if (graph_.value({value}).producer >= 0 || !where_.rests_here(buffer)) continue;
    e_.write_to(instrs);
    const Layout& home = held_[static_cast<size_t>(buffer)].use.layout;
    const Ref slot = slot_for({value}, {home, std::vector<bool>(home.axes.size())});
    const Ref copy =
        e_.call_typed("aten::clone", {{"self", slot}, {"memory_format", std::monostate{}}},
                      {e_.type(slot)})
            .front();
    out_.program.slots.back().name = "copy";
    update_buffer(buffer, value, copy, instrs);
  }
}

void StageLowering::update_buffer(int buffer, int value, Ref content, std::vector<Instr>& instrs) {
  Instr instr;
  instr.kind = InstrKind::update;
  instr.args = {{"value", content}};
  instr.target = slot_of({buffer}).id;
  instr.node = e_.origin().node;
  instr.module = e_.origin().module;
  instr.loc = e_.origin().loc;
  if (const auto factor = decay_of(buffer, value)) instr.args.push_back({"decay", *factor});
  instrs.push_back(std::move(instr));
}

// How much of a buffer its new content keeps, by which units that each run some of the
// micro-batches put their updates together.
std::optional<double> StageLowering::decay_of(int buffer, int value) const {
  const auto factor = kept(graph_, buffer, value);
  if (layouts_.units() == 1) return factor;
  const std::string hint = fmt::format(
      "run it as one scale unit, which sees the micro-batches in order: pas_policy=data "
      "compute_config.plan_ngpus={}",
      layouts_.world());
  const std::string& name = graph_.value({buffer}).name;
  if (is_read(graph_, buffer))
    throw Error(ErrorKind::plan,
                fmt::format("[lower.buffer] results depend on what {} held, which every "
                            "micro-batch writes; {} scale units cannot see each other's writes",
                            name, layouts_.units()),
                hint);
  if (!factor)
    throw Error(ErrorKind::plan,
                fmt::format("[lower.buffer] {} is written as no number · {} + what a micro-batch "
                            "adds (a running average, a sum, a count); {} scale units cannot put "
                            "their updates together",
                            name, name, layouts_.units()),
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
                              const DType weight = out_.program.slot(slot.id).type.dtype;
                              gradient = e_.cast(gradient, gradient_dtype(weight));
                              gradient = scattered(slot, gradient);
                              Instr instr;
                              instr.kind = InstrKind::accumulate;
                              instr.args = {{"value", gradient}};
                              instr.target = slot.id;
                              instr.node = e_.origin().node;
                              instr.module = e_.origin().module;
                              instr.loc = e_.origin().loc;
                              instrs.push_back(std::move(instr));
                            },
                            [&](const std::vector<Ref>& outs, Ref slot, Ref gradient) {
                              if (sights_)
                                sights_->give(e_.origin().node, outs, slot.id, gradient.id);
                            }});
  if (sights_) sights_->total(gradients);
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

// This rank's shard of the sum of a gradient, where that is how it rests and its weight does not.
Ref StageLowering::scattered(Ref parameter, Ref gradient) {
  const auto it = scatters_.find(parameter.id);
  if (it == scatters_.end()) return gradient;
  const auto made = e_.call_typed("comm::scatter_gradient",
                                  {{"self", gradient},
                                   {"dim", static_cast<int64_t>(it->second.dim)},
                                   {"group", it->second.ranks},
                                   {"empty", graph::Symbol{"$empty"}}},
                                  {gradient_type(out_.program.slot(parameter.id))});
  return made.front();
}

// Writes a recompute region's forward calls again, on new slots.
std::map<int, Ref> StageLowering::replay(int region, std::vector<Instr>& instrs) {
  std::map<int, Ref> moved;
  const std::vector<Instr>& forward = out_.program.segments[forward_].instrs;
  for (auto [first, last] : regions_.at(region))
    for (size_t i = first; i < last; ++i) {
      const operators::Record* record = operators::find(forward[i].op);
      if (record != nullptr && record->hook) continue;  // it has run
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
