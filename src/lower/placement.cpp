#include "lower/placement.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace nns::lower {
namespace {

using annotate::TensorSplit;

Axis axis_of(const TensorSplit& split, int parts, const graph::Node& node) {
  switch (split.kind) {
    case TensorSplit::Kind::replicate:
      return {parts, AxisKind::replicate, 0};
    case TensorSplit::Kind::value:
      return {parts, AxisKind::value, 0};
    case TensorSplit::Kind::dims:
      break;
  }
  if (split.axes.size() != 1)
    fail(ErrorKind::plan,
         "[lower.place] {} {}: a split cuts {} dimensions of one tensor; expected one", node.module,
         node.op, split.axes.size());
  return {parts, AxisKind::split, split.axes[0]};
}

}  // namespace

NodePlacement place(const graph::Graph& graph, const graph::Node& node, const plan::OpPlan& op,
                    int device) {
  const annotate::CallView call(graph, node);
  NodePlacement out;
  out.stage = op.stage;
  out.args = node.args;
  const size_t operands = graph::inputs_of(node).size();
  out.inputs.assign(operands, {{op.devices, {}}, {}});
  out.outputs.assign(node.outputs.size(), {op.devices, {}});
  std::optional<annotate::Binding> binding;
  const auto at = std::find(op.devices.begin(), op.devices.end(), device);
  NNS_CHECK(at != op.devices.end(), "{} {} has no part on device {}", node.module, node.op, device);
  std::map<std::string, annotate::Span> spans;  // of identifiers that earlier steps cut
  int rest = static_cast<int>(at - op.devices.begin()), below = op.parts();
  for (const plan::Step& step : op.steps) {
    below /= step.parts;
    const int part = rest / below;
    rest %= below;
    if (step.input < 0) {
      for (auto& use : out.inputs) {
        use.layout.axes.push_back({step.parts, AxisKind::replicate, 0});
        use.partial.push_back(false);
      }
      for (auto& layout : out.outputs) layout.axes.push_back({step.parts, AxisKind::replicate, 0});
      continue;
    }
    if (!binding) binding = annotate::bind(call);
    if (!binding)
      fail(ErrorKind::plan, "[lower.place] {} {}: the plan splits it, but it has no annotation",
           node.module, node.op);
    const annotate::Split split = binding->split(step.input, step.dim, step.parts, step.uneven);
    auto& span =
        spans.try_emplace(split.identifier, annotate::Span{0, binding->length(split.identifier), 0})
            .first->second;
    const Range mine = part_of({0, span.length}, part, step.parts);
    span = {mine.start, mine.length(), span.length};
    for (size_t i = 0; i < operands; ++i) {
      const TensorSplit& t = split.inputs.at(i);
      out.inputs[i].layout.axes.push_back(axis_of(t, step.parts, node));
      out.inputs[i].partial.push_back(t.kind == TensorSplit::Kind::replicate && !t.keeps_gradient);
    }
    for (size_t i = 0; i < out.outputs.size(); ++i)
      out.outputs[i].axes.push_back(axis_of(split.outputs.at(i), step.parts, node));
    const annotate::CallView so_far(
        node.op, out.args, [&](int id) -> const TensorType& { return graph.value({id}).type; });
    out.args = annotate::local_args(so_far, split, span);
  }
  return out;
}

}  // namespace nns::lower
