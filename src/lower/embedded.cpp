// The ends of a program inside a hand-written model: what its backward takes for each result, and
// what it gives for each input.
#include <fmt/format.h>

#include "lower/stage.h"

namespace nns::lower {

using graph::Nest;

// A seed for every result that depends on something that wants a gradient.
void StageLowering::seed_results(const Nest& nest, const std::string& name,
                                 std::vector<std::pair<Ref, Ref>>& seeds) {
  if (const auto* ref = std::get_if<Ref>(&nest.node)) {
    if (!tape_.requires_grad(*ref) || !is_floating(e_.dtype(*ref))) return;
    const Ref seed = e_.new_slot(e_.type(*ref), SlotRole::input, "seed." + name);
    seeds.emplace_back(*ref, seed);
    out_.program.seeds.emplace_back(name, seed.id);
  } else if (const auto* fields =
                 std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node)) {
    for (const auto& [key, field] : *fields)
      seed_results(field, fmt::format("{}.{}", name, key), seeds);
  }
}

// Gradients of inputs become results of backward; a parameter that forward returned as it is gets
// its seed.
void StageLowering::give_back(const std::vector<std::pair<Ref, Ref>>& seeds,
                              const std::vector<Ref>& gradients, std::vector<Instr>& instrs) {
  for (const auto& [result, seed] : seeds) {
    if (role(result) != SlotRole::parameter) continue;
    Instr instr;
    instr.kind = InstrKind::accumulate;
    instr.args = {{"value", seed}};
    instr.target = result.id;
    instrs.push_back(std::move(instr));
  }
  for (int id : graph_.inputs) {
    const Ref slot = slot_of({id});
    const size_t at = static_cast<size_t>(slot.id);
    if (at < gradients.size() && gradients[at].id >= 0)
      out_.program.input_gradients.emplace_back(graph_.value({id}).name, gradients[at].id);
  }
}

}  // namespace nns::lower
