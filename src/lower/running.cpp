#include "lower/running.h"

#include <algorithm>

#include "annotate/grammar.h"
#include "graph/nest.h"

namespace nns::lower {

using graph::Node;

std::vector<bool> depends_on(const graph::Graph& graph, int buffer) {
  std::vector<bool> depends(graph.values.size());
  depends[static_cast<size_t>(buffer)] = true;
  for (const Node& node : graph.nodes) {
    const auto inputs = graph::inputs_of(node);
    const bool any = std::any_of(inputs.begin(), inputs.end(),
                                 [&](int id) { return depends[static_cast<size_t>(id)]; });
    if (!any) continue;
    const annotate::CallView call(graph, node);
    const auto reads = [&](const char* name) {
      const graph::Arg* arg = call.find(name);
      const auto* ref = arg != nullptr ? std::get_if<graph::ValueRef>(arg) : nullptr;
      return ref != nullptr && ref->id >= 0 && depends[static_cast<size_t>(ref->id)];
    };
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
  bool shows = false;
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) { shows = shows || depends[static_cast<size_t>(id)]; });
  return shows ||
         std::any_of(graph.buffer_updates.begin(), graph.buffer_updates.end(), [&](const auto& u) {
           return u.first != buffer && depends[static_cast<size_t>(u.second)];
         });
}

}  // namespace nns::lower
