#include "lower/running.h"

#include <algorithm>

#include "annotate/grammar.h"

namespace nns::lower {
namespace {

using graph::Nest;
using graph::Node;

bool reaches(const Nest& nest, const std::vector<bool>& depends) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&nest.node))
    return ref->id >= 0 && depends[static_cast<size_t>(ref->id)];
  if (const auto* fields = std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node))
    return std::any_of(fields->begin(), fields->end(),
                       [&](const auto& field) { return reaches(field.second, depends); });
  return false;
}

}  // namespace

std::vector<bool> depends_on(const graph::Graph& graph, int buffer) {
  std::vector<bool> depends(graph.values.size());
  depends[static_cast<size_t>(buffer)] = true;
  for (const Node& node : graph.nodes) {
    const annotate::CallView call(graph, node);
    const auto reads = [&](const char* name) {
      const graph::Arg* arg = call.find(name);
      const auto* ref = arg != nullptr ? std::get_if<graph::ValueRef>(arg) : nullptr;
      return ref != nullptr && ref->id >= 0 && depends[static_cast<size_t>(ref->id)];
    };
    const auto inputs = graph::inputs_of(node);
    const bool any = std::any_of(inputs.begin(), inputs.end(),
                                 [&](int id) { return depends[static_cast<size_t>(id)]; });
    if (!any) continue;
    const bool statistics = node.op.starts_with("aten::batch_norm") && call.boolean("training") &&
                            !reads("input") && !reads("weight") && !reads("bias");
    for (size_t i = 0; i < node.outputs.size(); ++i)
      depends[static_cast<size_t>(node.outputs[i])] =
          !statistics || (i == 1 && reads("running_mean")) || (i == 2 && reads("running_var"));
  }
  return depends;
}

bool is_read(const graph::Graph& graph, int buffer) {
  const auto depends = depends_on(graph, buffer);
  return std::any_of(graph.outputs.begin(), graph.outputs.end(),
                     [&](const Nest& nest) { return reaches(nest, depends); }) ||
         std::any_of(graph.buffer_updates.begin(), graph.buffer_updates.end(), [&](const auto& u) {
           return u.first != buffer && depends[static_cast<size_t>(u.second)];
         });
}

}  // namespace nns::lower
