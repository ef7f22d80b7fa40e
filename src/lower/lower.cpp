// From Graph to the Program of one rank: every operator that has a part on its device, with the
// communication that brings operands to where they are used.
#include "lower/lower.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
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
        device_(options.plan ? options.rank % options.plan->plan_ngpus : 0),
        first_rank_(options.rank - device_),
        exchange_(tape_, e_, device_, first_rank_) {}

  Lowered run() {
    out_.program.model = graph_.name;
    out_.program.training = graph_.training;
    out_.program.graph_hash = graph::exact_hash(graph_);
    out_.program.rank = options_.rank;
    if (options_.plan) out_.program.world = options_.plan->runtime_ngpus;
    place_nodes();
    bind_leaves();
    forward();
    if (graph_.training) backward();
    finish();
    return std::move(out_);
  }

 private:
  // --- where things lie
  // ---------------------------------------------------------------------------

  void place_nodes() {
    for (int d = 0; d < (options_.plan ? options_.plan->plan_ngpus : 1); ++d) devices_.push_back(d);
    held_.resize(graph_.values.size());
    if (!options_.plan) return;
    const auto entries = plan::match(*options_.plan, graph_);
    for (const Node& node : graph_.nodes) {
      const plan::OpPlan& op = *entries[static_cast<size_t>(node.id)];
      if (op.devices.size() != devices_.size())
        fail(ErrorKind::plan,
             "[lower.place] {} runs on {} of {} devices; pipelines are not lowered yet",
             plan::to_string(op.key), op.devices.size(), devices_.size());
      placed_.push_back(place(graph_, node, op, device_));
    }
  }

  // How a leaf rests: as its users want it where they agree, else whole on every device.
  OperandUse home_of(int value) const {
    const TensorType& type = graph_.value({value}).type;
    const OperandUse* first = nullptr;
    OperandUse whole{Layout::replicated(devices_), {false}};
    for (const Node& node : graph_.nodes) {
      if (placed_.empty()) break;
      const auto inputs = graph::inputs_of(node);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != value) continue;
        const OperandUse& use = placed_[static_cast<size_t>(node.id)].inputs[i];
        if (use.layout.has_value_axis()) return whole;
        if (first == nullptr)
          first = &use;
        else if (!same_pieces(first->layout, use.layout, type.shape) || !same_sums(*first, use))
          return whole;
      }
    }
    return first != nullptr ? *first : whole;
  }

  // Whether the gradients of both uses are addends over the same ranks.
  bool same_sums(const OperandUse& a, const OperandUse& b) const {
    return exchange_.group(a.layout, partial_axes(a)) == exchange_.group(b.layout, partial_axes(b));
  }
  // Axes of more than one part along which gradients are addends.
  static std::vector<int> partial_axes(const OperandUse& use) {
    std::vector<int> axes;
    for (size_t a = 0; a < use.partial.size(); ++a)
      if (use.partial[a] && use.layout.axes[a].size > 1) axes.push_back(static_cast<int>(a));
    return axes;
  }

  void bind_leaf(int id, SlotRole role) {
    const auto& value = graph_.values.at(static_cast<size_t>(id));
    const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
    const OperandUse home = rests ? home_of(id) : OperandUse{Layout::replicated(devices_), {false}};
    const Piece piece = home.layout.piece(value.type.shape, device_);
    Shape local;
    for (const Range& r : piece.box) local.push_back(r.length());
    const Ref slot = e_.new_slot({local, value.type.dtype}, role, value.name);
    if (local != value.type.shape) {
      auto& made = out_.program.slots.back();
      made.whole = value.type.shape;
      made.box = piece.box;
    }
    held_[static_cast<size_t>(id)] = {home, slot};
    if (role == SlotRole::parameter && value.requires_grad) tape_.require_grad(slot);
    if (role == SlotRole::parameter && options_.plan)
      out_.program.shares.push_back(share_of(value.type.shape, home));
  }

  Share share_of(const Shape& shape, const OperandUse& home) const {
    Share share;
    const int per_unit = options_.plan->plan_ngpus, units = options_.plan->units();
    const Piece mine = home.layout.piece(shape, device_);
    int holders = 0;
    for (int d : home.layout.devices) holders += home.layout.piece(shape, d) == mine;
    share.holders = holders * units;
    const Shape group = exchange_.group(home.layout, partial_axes(home));
    for (int u = 0; u < units; ++u)
      for (int64_t rank : group)
        share.reduce.push_back(static_cast<int>(rank - first_rank_) + u * per_unit);
    if (share.reduce.size() == 1) share.reduce.clear();
    return share;
  }

  void bind_leaves() {
    Program& program = out_.program;
    const auto bind = [&](const std::vector<int>& ids, SlotRole role, std::vector<int>* list) {
      for (int id : ids) {
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

  // The slot that holds a value as it was made.
  Ref slot_of(Ref value) const { return held_.at(static_cast<size_t>(value.id)).slot; }

  // The slot that holds a value as `use` wants it; conversions are shared by uses that want alike.
  Ref slot_for(Ref value, const OperandUse& use) {
    const Held& held = held_.at(static_cast<size_t>(value.id));
    const TensorType& type = graph_.value(value).type;
    const SlotRole role = this->role(held.slot);
    const bool rests = role == SlotRole::parameter || role == SlotRole::buffer;
    if (rests && same_pieces(held.use.layout, use.layout, type.shape) && same_sums(held.use, use))
      return held.slot;
    const std::string key =
        fmt::format("{} {} {}", value.id, to_string(use.layout), fmt::join(partial_axes(use), ","));
    const auto known = converted_.find(key);
    if (known != converted_.end()) return known->second;
    const Ref made = exchange_.convert(held.slot, held.use.layout, use, type);
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

    for (const Node& node : graph_.nodes) {
      e_.set_origin({node.id, node.module, node.loc});
      const size_t first = segment.instrs.size();
      const size_t first_slot = out_.program.slots.size();
      CallSite site{node.ordinal, node.context.grad_enabled, node.context.recompute_region, {}, {}};
      std::vector<TensorType> types;
      std::vector<NamedArg> args = local_call(node, site, types);
      const std::vector<Ref> outs = tape_.apply(node.op, std::move(args), site, &types);
      NNS_CHECK(outs.size() == types.size(), "{} lowered to {} outputs, not {}", node.op,
                outs.size(), types.size());
      const std::string name = hint(node, calls_in_module);
      name_slots(segment.instrs, first);
      for (size_t i = 0; i < outs.size(); ++i) {
        NNS_CHECK(e_.type(outs[i]) == types[i], "{} lowered to {}, not {}", node.op,
                  to_string(e_.type(outs[i])), to_string(types[i]));
        held_[static_cast<size_t>(node.outputs[i])] = {made_layout(node, i), outs[i]};
        if (static_cast<size_t>(outs[i].id) >= first_slot)
          out_.program.slots[static_cast<size_t>(outs[i].id)].name = name;
      }
      if (node.context.recompute_region >= 0)  // statistics are not part of it
        regions_[node.context.recompute_region].emplace_back(first, segment.instrs.size());
      update_buffers(node, segment.instrs);
    }
    for (const Nest& nest : graph_.outputs) out_.program.outputs.push_back(convert(nest, segment));
  }

  // The arguments of this device's part of a node, and the types of its results.
  std::vector<NamedArg> local_call(const Node& node, CallSite& site,
                                   std::vector<TensorType>& types) {
    const NodePlacement* placed =
        placed_.empty() ? nullptr : &placed_[static_cast<size_t>(node.id)];
    std::vector<NamedArg> args = placed != nullptr ? placed->args : node.args;
    size_t i = 0;
    for_each_ref(args, [&](Ref& ref) {
      if (placed != nullptr && i == 0) {
        const Shape& shape = graph_.value(ref).type.shape;
        const Piece piece = placed->inputs[0].layout.piece(shape, device_);
        for (const Range& r : piece.box) site.offset.push_back(r.start);
        site.full = shape;
        if (placed->inputs[0].layout.local_shape(shape, device_) == shape)
          site.offset.clear(), site.full.clear();
      }
      ref = placed != nullptr ? slot_for(ref, placed->inputs[i]) : slot_of(ref);
      ++i;
    });
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const TensorType& whole = graph_.value({node.outputs[k]}).type;
      types.push_back({made_layout(node, k).layout.local_shape(whole.shape, device_), whole.dtype});
    }
    return args;
  }

  OperandUse made_layout(const Node& node, size_t output) const {
    if (placed_.empty()) return {Layout::replicated(devices_), {false}};
    return {placed_[static_cast<size_t>(node.id)].outputs[output], {}};
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
      const Ref slot = slot_for(*ref, {Layout::replicated(devices_), {false}});
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
    const Ref loss = this->loss();
    std::vector<Instr> instrs;
    e_.write_to(instrs);
    const Ref seed = e_.new_slot(e_.type(loss), SlotRole::input, "seed");
    tape_.replay = [&](int region) { return replay(region, instrs); };
    tape_.on_fallback = [&](std::string_view op) {
      out_.fallbacks.push_back({std::string(op), e_.origin().module, e_.origin().loc});
    };
    if (tape_.requires_grad(loss))
      tape_.reverse(loss, seed,
                    {[&](Ref slot) { return role(slot) == SlotRole::parameter; },
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
    name_slots(instrs, 0);
    Segment& segment = add_segment("backward");
    segment.inputs.push_back(seed.id);
    segment.instrs = std::move(instrs);
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
    remove_dead_calls(program);
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
  int device_, first_rank_;  // in the plan; rank of the unit's device 0
  Exchange exchange_;
  std::vector<int> devices_;           // of the plan
  std::vector<NodePlacement> placed_;  // by node; empty on one device
  struct Held {
    OperandUse use;
    Ref slot;
  };
  std::vector<Held> held_;  // by value: as it was made
  std::map<std::string, Ref> converted_;
  std::map<int, std::vector<std::pair<size_t, size_t>>> regions_;
};

}  // namespace

Lowered lower(const Graph& graph, const Options& options) {
  return Lowering(graph, options).run();
}

}  // namespace nns::lower
