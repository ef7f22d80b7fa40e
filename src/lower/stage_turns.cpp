// Parts of operators that run one after another on a device: each turn goes through a whole run of
// operators before the next one starts.
#include <algorithm>
#include <set>

#include "lower/stage.h"

namespace nns::lower {

using graph::Node;

void take_turn(std::vector<Range>& box, const TurnCut& cut, int turn, int turns) {
  if (cut.kind != annotate::TensorSplit::Kind::dims) return;
  Range& range = box.at(static_cast<size_t>(cut.dim));
  range = part_of(range, turn, turns);
}

// The nodes from `first` on that run turn by turn together: each part goes through all of them
// before the next starts. A node that needs more of an operand than its own turn's part of it
// ends the run. A node of one turn is alone.
std::vector<const Node*> StageLowering::run_from(size_t first) {
  std::vector<const Node*> run{&graph_.nodes[first]};
  const int turns = turns_of(*run[0]);
  std::map<int, std::pair<Layout, TurnCut>> made;
  const auto note = [&](const Node& node) {
    const NodePlacement& placed = *this->placed(node);
    for (size_t k = 0; k < node.outputs.size(); ++k)
      made[node.outputs[k]] = {placed.outputs[k], placed.turn_outputs[k]};
  };
  if (turns > 1) note(*run[0]);
  for (size_t i = first + 1; turns > 1 && i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    if (!where_.is_here(node)) continue;
    if (turns_of(node) != turns || updates_buffer(*run.back())) break;
    const NodePlacement& placed = *this->placed(node);
    const auto inputs = graph::inputs_of(node);
    bool fits = true;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto it = made.find(inputs[k]);
      if (it == made.end()) continue;
      const auto& [layout, cut] = it->second;
      const bool partial = !partial_axes(placed.inputs[k]).empty();
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

bool StageLowering::updates_buffer(const Node& node) const {
  return std::any_of(graph_.buffer_updates.begin(), graph_.buffer_updates.end(),
                     [&](const auto& u) { return graph_.value({u.second}).producer == node.id; });
}

void StageLowering::call_in_turns(const std::vector<const Node*>& run, std::vector<Instr>& instrs,
                                  const std::vector<int>& calls_in_module) {
  // What comes from outside is cut before the first turn, outside of what is run again.
  std::set<int> inside;
  for (const Node* node : run) inside.insert(node->outputs.begin(), node->outputs.end());
  for (const Node* node : run) {
    e_.set_origin({node->id, node->module, node->loc});
    const auto inputs = graph::inputs_of(*node);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!inside.contains(inputs[i])) turn_of({inputs[i]}, *placed(*node), i, 0);
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
Ref StageLowering::turn_of(Ref value, const NodePlacement& placed, size_t i, int turn) {
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
    parts =
        tape_.apply("aten::split_with_sizes",
                    {{"self", all}, {"split_sizes", sizes}, {"dim", static_cast<int64_t>(cut.dim)}},
                    CallSite{}, &types);
  }
  return parts[static_cast<size_t>(turn)];
}

// The turns' parts of a result as one tensor.
void StageLowering::join(const Node& node, size_t k) {
  const int value = node.outputs[k];
  const std::vector<Ref> parts = in_turns_.at(value);
  const TurnCut& cut = placed(node)->turn_outputs[k];
  Ref whole = parts[0];
  const TensorType& global = graph_.value({value}).type;
  const std::vector<TensorType> types{
      {peers_.local_shape(layouts_.made(node, k), global.shape), global.dtype}};
  if (cut.kind == annotate::TensorSplit::Kind::dims)
    whole = tape_
                .apply("aten::cat", {{"tensors", parts}, {"dim", static_cast<int64_t>(cut.dim)}},
                       CallSite{}, &types)
                .front();
  if (cut.kind == annotate::TensorSplit::Kind::value)
    for (size_t j = 1; j < parts.size(); ++j)
      whole = tape_
                  .apply("aten::add.Tensor",
                         {{"self", whole}, {"other", parts[j]}, {"alpha", int64_t{1}}}, CallSite{},
                         &types)
                  .front();
  hold(value, {layouts_.made(node, k), {}}, whole, true);
}

}  // namespace nns::lower
