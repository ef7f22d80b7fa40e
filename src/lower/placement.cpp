#include "lower/placement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "operators/record.h"
#include "operators/rest.h"

namespace nns::lower {
namespace {

using annotate::TensorSplit;

Axis axis_of(const TensorSplit& split, const plan::Cut& cut, const graph::Node& node) {
  switch (split.kind) {
    case TensorSplit::Kind::replicate:
      return {cut.parts, AxisKind::replicate, 0};
    case TensorSplit::Kind::value:
      return {cut.parts, AxisKind::value, 0};
    case TensorSplit::Kind::dims:
      break;
  }
  if (split.axes.size() != 1)
    fail(ErrorKind::plan,
         "[lower.place] {} {}: a split cuts {} dimensions of one tensor; expected one", node.module,
         node.op, split.axes.size());
  return {cut.parts, AxisKind::split, split.axes[0], cut.sizes};
}

// The devices of a node once each; those that stand in a row run their parts in turns.
std::vector<int> distinct(const plan::OpPlan& op) {
  const int turns = op.turns();
  std::vector<int> out;
  for (size_t i = 0; i < op.devices.size(); ++i) {
    const bool first = i % static_cast<size_t>(turns) == 0;
    if (first) out.push_back(op.devices[i]);
    const bool known = std::count(out.begin(), out.end(), op.devices[i]) == 1;
    if (op.devices[i] != out.back() || !known)
      throw Error(ErrorKind::plan,
                  fmt::format("[lower.place] {} runs on devices {}; expected each device as often, "
                              "its parts in a row",
                              plan::to_string(op.key), fmt::join(op.devices, ",")),
                  "0,0,1,1 runs two parts on each of two devices");
  }
  return out;
}

// The cuts that share a node out over devices, then those that share out a device's part over its
// turns; a cut in which both meet is taken apart.
std::pair<std::vector<plan::Cut>, std::vector<plan::Cut>> by_turns(const plan::OpPlan& op,
                                                                   int devices) {
  std::vector<plan::Cut> outer, inner;
  int done = 1;
  for (plan::Cut cut : op.cuts) {
    const int left = devices / done;
    if (left > 1 && left % cut.parts == 0) {
      done *= cut.parts;
      outer.push_back(cut);
    } else if (left == 1 && cut.sizes.empty()) {
      inner.push_back(cut);
    } else if (cut.parts % left == 0 && !cut.uneven) {
      plan::Cut first = cut;
      first.parts = left;
      cut.parts /= left;
      done = devices;
      outer.push_back(first);
      inner.push_back(cut);
    } else {
      fail(ErrorKind::plan,
           "[lower.place] {}: {} parts of a cut lie across {} devices; expected cuts that share "
           "out devices, then turns",
           plan::to_string(op.key), cut.parts, devices);
    }
  }
  std::erase_if(inner, [](const plan::Cut& c) { return c.input < 0 || c.parts == 1; });
  if (inner.size() > 1)
    fail(ErrorKind::plan, "[lower.place] {}: {} cuts share out the turns of a device; expected one",
         plan::to_string(op.key), inner.size());
  return {outer, inner};
}

TurnCut turn_cut(const TensorSplit& split, const plan::OpPlan& op) {
  if (split.kind == TensorSplit::Kind::dims && split.axes.size() != 1)
    fail(ErrorKind::plan,
         "[lower.place] {}: a split cuts {} dimensions of one tensor; expected one",
         plan::to_string(op.key), split.axes.size());
  return {split.kind, split.axes.empty() ? 0 : split.axes[0], split.keeps_gradient};
}

// Whether a cut lies inside another.
bool is_nested(const std::vector<plan::Cut>& cuts) {
  return std::count_if(cuts.begin(), cuts.end(), [](const plan::Cut& c) { return c.input >= 0; }) >
         1;
}

// Binds the annotation of a node when the first cut needs it.
class Cutter {
 public:
  Cutter(const graph::Graph& graph, const graph::Node& node, const plan::OpPlan& op)
      : graph_(graph), node_(node), op_(op) {}

  PartCut bound(const plan::Cut& cut) {
    if (!rest_) rest_.emplace(graph_, node_);
    const annotate::Binding* binding = rest_->at(cut.input, cut.dim);
    if (binding == nullptr)
      fail(ErrorKind::plan, "[lower.place] {}: the plan splits it, but it has no annotation",
           plan::to_string(op_.key));
    annotate::Split split = binding->split(cut.input, cut.dim, cut.parts, cut.uneven);
    const int64_t total = binding->length(split.identifier);
    if (is_nested(op_.cuts)) rest_->cut(split, cut.parts, !cut.uneven);
    return {cut, std::move(split), total};
  }

 private:
  const graph::Graph& graph_;
  const graph::Node& node_;
  const plan::OpPlan& op_;
  std::optional<operators::Rest> rest_;
};

// Operand that output number `extra` behind the operator's own ones is the new content of.
size_t written_operand(const graph::Node& node, size_t extra) {
  const operators::Record* info = operators::find(node.op);
  NNS_CHECK(info != nullptr && extra < info->mutates.size(), "{} has too many outputs", node.op);
  size_t i = 0;
  for (const graph::NamedArg& a : node.args) {
    if (a.name == info->mutates[extra]) return i;
    if (const auto* one = std::get_if<graph::ValueRef>(&a.value)) i += one->id >= 0;
    if (const auto* list = std::get_if<std::vector<graph::ValueRef>>(&a.value))
      for (graph::ValueRef ref : *list) i += ref.id >= 0;
  }
  NNS_CHECK(false, "{} has no operand {}", node.op, info->mutates[extra]);
}

// What a split makes of output `i`; contents of buffers that the call writes come last.
const TensorSplit& output_split(const graph::Node& node, const annotate::Split& split, size_t i) {
  const size_t own = split.outputs.size();
  return i < own ? split.outputs[i] : split.inputs.at(written_operand(node, i - own));
}

// Refuses to run the parts of an assisted split one after another on a device: they communicate, so
// each would wait for a part that has not started.
void refuse_assisted(const operators::CallView& call, const annotate::Split& split,
                     const plan::OpPlan& op) {
  if (operators::is_assisted(call, split))
    throw Error(ErrorKind::plan,
                fmt::format("[lower.place] {}: its parts along '{}' need each other's results, so "
                            "they cannot run in turns",
                            plan::to_string(op.key), split.identifier),
                "cut another dimension, or give every part a device of its own");
}

}  // namespace

NodePlacement place(const graph::Graph& graph, const graph::Node& node, const plan::OpPlan& op) {
  NodePlacement out;
  out.stage = op.stage;
  out.devices = distinct(op);
  const size_t operands = graph::inputs_of(node).size();
  const operators::CallView call(graph, node);
  out.inputs.assign(operands, {{out.devices, {}}, {}});
  out.outputs.assign(node.outputs.size(), {out.devices, {}});
  Cutter cutter(graph, node, op);
  const auto [spread, turns] = by_turns(op, static_cast<int>(out.devices.size()));
  for (const plan::Cut& cut : spread) {
    if (cut.input < 0) {
      for (auto& use : out.inputs) {
        use.layout.axes.push_back({cut.parts, AxisKind::replicate, 0});
        use.partial.push_back(false);
      }
      for (auto& layout : out.outputs) layout.axes.push_back({cut.parts, AxisKind::replicate, 0});
      out.cuts.push_back({cut});
      continue;
    }
    PartCut part = cutter.bound(cut);
    const annotate::Split& split = *part.split;
    if (!turns.empty()) refuse_assisted(call, split, op);
    for (size_t i = 0; i < operands; ++i) {
      const TensorSplit& t = split.inputs.at(i);
      out.inputs[i].layout.axes.push_back(axis_of(t, cut, node));
      out.inputs[i].partial.push_back(t.kind == TensorSplit::Kind::replicate && !t.keeps_gradient);
    }
    for (size_t i = 0; i < out.outputs.size(); ++i)
      out.outputs[i].axes.push_back(axis_of(output_split(node, split, i), cut, node));
    out.cuts.push_back(std::move(part));
  }
  for (const plan::Cut& cut : turns) {
    out.turn_cut = cutter.bound(cut);
    const annotate::Split& split = *out.turn_cut->split;
    refuse_assisted(call, split, op);
    out.turns = cut.parts;
    for (const TensorSplit& t : split.inputs) out.turn_inputs.push_back(turn_cut(t, op));
    for (size_t i = 0; i < out.outputs.size(); ++i)
      out.turn_outputs.push_back(turn_cut(output_split(node, split, i), op));
  }
  return out;
}

std::vector<std::vector<graph::NamedArg>> args_on(const graph::Graph& graph,
                                                  const graph::Node& node,
                                                  const NodePlacement& placed, int device) {
  const auto at = std::find(placed.devices.begin(), placed.devices.end(), device);
  NNS_CHECK(at != placed.devices.end(), "{} {} has no part on device {}", node.module, node.op,
            device);
  size_t splits = placed.turn_cut ? 1 : 0;
  for (const PartCut& piece : placed.cuts) splits += piece.split ? 1 : 0;
  std::optional<operators::Rest> left;  // of the call, where cuts lie inside others
  if (splits > 1) left.emplace(graph, node);
  const auto type_of = [&](int id) -> const TensorType& { return graph.value({id}).type; };
  std::map<std::string, int64_t> lengths;  // of identifiers, as far as they are cut
  const auto narrowed = [&](const std::vector<graph::NamedArg>& args, const PartCut& piece,
                            int part, bool keep) {
    const int turns = left ? left->turns() : 0;
    if (left) left->at(piece.cut.input, piece.cut.dim);
    if (left && left->turns() > turns) lengths.clear();
    int64_t& length = lengths.try_emplace(piece.split->identifier, piece.total).first->second;
    const Range mine = part_of({0, length}, part, piece.cut.parts, piece.cut.sizes);
    const operators::CallView view =
        left ? left->view(args) : operators::CallView(node.op, args, type_of);
    auto out =
        operators::local_args(view, *piece.split, {mine.start, mine.length(), length, piece.total});
    if (!keep) return out;
    length = mine.length();
    if (left) left->cut(*piece.split, piece.cut.parts, !piece.cut.uneven);
    return out;
  };
  std::vector<graph::NamedArg> args = node.args;
  int rest = static_cast<int>(at - placed.devices.begin());
  int below = static_cast<int>(placed.devices.size());
  for (const PartCut& piece : placed.cuts) {
    below /= piece.cut.parts;
    const int part = rest / below;
    rest %= below;
    if (piece.split) args = narrowed(args, piece, part, true);
  }
  if (!placed.turn_cut) return {std::move(args)};
  std::vector<std::vector<graph::NamedArg>> out;
  for (int turn = 0; turn < placed.turns; ++turn)
    out.push_back(narrowed(args, *placed.turn_cut, turn, false));
  return out;
}

}  // namespace nns::lower
