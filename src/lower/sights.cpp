#include "lower/sights.h"

#include <algorithm>
#include <tuple>

namespace nns::lower {
namespace {

// Of a value that a call makes in addends, every device has the whole gradient; what uses a value
// alike on several devices but shares out the work gives addends of it.
Layout gradient_of(const OperandUse& use) {
  Layout layout = use.layout;
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    Axis& axis = layout.axes[a];
    if (axis.kind == AxisKind::split) continue;
    const bool partial = a < use.partial.size() && use.partial[a];
    axis.kind = partial ? AxisKind::value : AxisKind::replicate;
  }
  return layout;
}

}  // namespace

void Sights::see(int value, int slot, const OperandUse& use, int reader, bool made) {
  list_.push_back({value, false, reader, slot, use.layout});
  places_.try_emplace(slot, Place{value, gradient_of(use), made});
  brings_.try_emplace(slot, value);
}

void Sights::bring(int value, size_t first, size_t last) {
  for (size_t slot = first; slot < last; ++slot) brings_[static_cast<int>(slot)] = value;
}

void Sights::give(int reader, const std::vector<ValueRef>& outs, int slot, int gradient) {
  const auto at = places_.find(slot);
  if (at == places_.end()) return;
  const int value = at->second.value;
  for (ValueRef out : outs)  // of the value itself in another form: no reader of it
    if (const auto to = brings_.find(out.id); to != brings_.end() && to->second == value) return;
  list_.push_back({value, true, reader, gradient, at->second.gradient});
}

void Sights::total(const std::vector<ValueRef>& gradients) {
  for (const auto& [slot, place] : places_)
    if (place.made && static_cast<size_t>(slot) < gradients.size())
      if (const int gradient = gradients[static_cast<size_t>(slot)].id; gradient >= 0)
        list_.push_back({place.value, true, -1, gradient, place.gradient});
}

void Sights::rename(const std::map<int, int>& by) {
  for (Sight& sight : list_)
    if (const auto at = by.find(sight.slot); at != by.end()) sight.slot = at->second;
}

std::vector<Seen> seen_on(const graph::Graph& graph, const Program& program,
                          const std::vector<Sight>& sights, int device) {
  std::multimap<int, const Sight*> by_slot;
  for (const Sight& sight : sights)
    if (sight.layout.position_of(device) >= 0) by_slot.emplace(sight.slot, &sight);
  std::vector<Seen> out;
  for (size_t s = 0; s < program.segments.size(); ++s) {
    int call = 0;
    for (const Instr& instr : program.segments[s].instrs) {
      if (instr.kind != InstrKind::call) continue;
      for (size_t i = 0; i < instr.outs.size(); ++i) {
        const auto [first, last] = by_slot.equal_range(instr.outs[i]);
        for (auto it = first; it != last; ++it) {
          const Sight& sight = *it->second;
          out.push_back({sight.value, sight.gradient, sight.reader, instr.node, static_cast<int>(s),
                         call, static_cast<int>(i), to_string(sight.layout),
                         sight.layout.piece(graph.value({sight.value}).type.shape, device)});
        }
      }
      ++call;
    }
  }
  return out;
}

}  // namespace nns::lower
