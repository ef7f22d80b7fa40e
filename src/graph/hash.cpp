// The two hashes of a graph. Both are the same on every machine and ignore source places.
#include "base/error.h"
#include "graph/graph.h"

namespace nns::graph {

// The text form without locations holds all that counts, so it is what is hashed.
uint64_t exact_hash(const Graph& graph) {
  return hash_bytes(to_text(graph, false));
}

// Hashes operators, module paths, ordinals and which call feeds which. An operand counts as its
// producer (a leaf as its name), not as its id. Numbers, shapes and dtypes are left out.
uint64_t structure_hash(const Graph& graph) {
  uint64_t h = hash_bytes("nnscaler structure 1");
  const auto mix = [&h](std::string_view text) { h = hash_bytes("\x1f", hash_bytes(text, h)); };
  const auto mix_value = [&](int id) {
    const Value& value = graph.values.at(static_cast<size_t>(id));
    if (value.producer < 0) return mix(fmt::format("{} {}", name_of(value.role), value.name));
    const auto& outputs = graph.nodes.at(static_cast<size_t>(value.producer)).outputs;
    size_t index = 0;
    while (index < outputs.size() && outputs[index] != id) ++index;
    mix(fmt::format("{}.{}", value.producer, index));
  };
  for (const int id : graph.parameters) mix(graph.values.at(static_cast<size_t>(id)).name);
  for (const auto& [alias, name] : graph.aliases) {
    mix(alias);
    mix(name);
  }
  for (const Node& node : graph.nodes) {
    mix(node.op);
    mix(node.module);
    mix(fmt::format("{} {}", node.ordinal, node.outputs.size()));
    for (const int id : inputs_of(node)) mix_value(id);
    mix("\x1e");
  }
  return h;
}

}  // namespace nns::graph
