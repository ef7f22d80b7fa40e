// From Graph to Program on one device.
#include "lower/lower.h"

#include <algorithm>

#include "base/error.h"
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
        tape_(e_, graph.training) {}

  Lowered run() {
    out_.program.model = graph_.name;
    out_.program.training = graph_.training;
    out_.program.graph_hash = graph::exact_hash(graph_);
    bind_leaves();
    forward();
    if (graph_.training) backward();
    finish();
    return std::move(out_);
  }

 private:
  void bind_leaves() {
    slot_of_.resize(graph_.values.size());
    const auto bind = [&](const std::vector<int>& ids, SlotRole role, std::vector<int>* list) {
      for (int id : ids) {
        const auto& value = graph_.values.at(static_cast<size_t>(id));
        const Ref slot = e_.new_slot(value.type, role, value.name);
        slot_of_[static_cast<size_t>(id)] = slot;
        if (list != nullptr) list->push_back(slot.id);
        if (role == SlotRole::parameter && value.requires_grad) tape_.require_grad(slot);
      }
    };
    bind(graph_.inputs, SlotRole::input, nullptr);
    bind(graph_.parameters, SlotRole::parameter, &out_.program.parameters);
    bind(graph_.buffers, SlotRole::buffer, &out_.program.buffers);
    std::vector<int> constants;
    for (const auto& value : graph_.values)
      if (value.role == Role::constant) constants.push_back(value.id);
    bind(constants, SlotRole::constant, &out_.program.constants);
    for (int id : constants)
      out_.program.constant_data.push_back(graph_.values[static_cast<size_t>(id)].data);
  }

  Ref slot_of(Ref value) const { return slot_of_.at(static_cast<size_t>(value.id)); }

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
      std::vector<NamedArg> args = node.args;
      for_each_ref(args, [&](Ref& ref) { ref = slot_of(ref); });
      std::vector<TensorType> types;
      for (int id : node.outputs) types.push_back(graph_.value({id}).type);
      const size_t first = segment.instrs.size();
      const size_t first_slot = out_.program.slots.size();
      const CallSite site{node.ordinal, node.context.grad_enabled, node.context.recompute_region};
      const std::vector<Ref> outs = tape_.apply(node.op, std::move(args), site, &types);
      NNS_CHECK(outs.size() == types.size(), "{} lowered to {} outputs, not {}", node.op,
                outs.size(), types.size());
      const std::string name = hint(node, calls_in_module);
      name_slots(segment.instrs, first);
      for (size_t i = 0; i < outs.size(); ++i) {
        NNS_CHECK(e_.type(outs[i]) == types[i], "{} lowered to {}, not {}", node.op,
                  to_string(e_.type(outs[i])), to_string(types[i]));
        slot_of_[static_cast<size_t>(node.outputs[i])] = outs[i];
        if (static_cast<size_t>(outs[i].id) >= first_slot)
          out_.program.slots[static_cast<size_t>(outs[i].id)].name = name;
      }
      if (node.context.recompute_region >= 0)  // statistics are not part of it
        regions_[node.context.recompute_region].emplace_back(first, segment.instrs.size());
      update_buffers(node, segment.instrs);
    }
    for (const Nest& nest : graph_.outputs) out_.program.outputs.push_back(convert(nest, segment));
  }

  // The new content of a buffer is handed over where it is made.
  void update_buffers(const Node& node, std::vector<Instr>& instrs) {
    for (auto [buffer, value] : graph_.buffer_updates) {
      if (std::find(node.outputs.begin(), node.outputs.end(), value) == node.outputs.end())
        continue;
      Instr instr;
      instr.kind = InstrKind::update;
      instr.args = {{"value", slot_of({value})}};
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
      const Ref slot = slot_of(*ref);
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
    return slot_of(*ref);
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
  std::vector<Ref> slot_of_;  // by value
  std::map<int, std::vector<std::pair<size_t, size_t>>> regions_;
};

}  // namespace

Lowered lower(const Graph& graph, const Options& options) {
  return Lowering(graph, options).run();
}

}  // namespace nns::lower
