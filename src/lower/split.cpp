#include "lower/split.h"

#include <algorithm>

#include "lower/uses.h"

namespace nns::lower {

std::vector<bool> made_of_weights(const Program& program, const Segment& forward) {
  std::vector<bool> out(program.slots.size(), false);
  for (const Slot& slot : program.slots)
    out[static_cast<size_t>(slot.id)] = slot.role == SlotRole::parameter ||
                                        slot.role == SlotRole::buffer ||
                                        slot.role == SlotRole::constant;
  for (const Instr& instr : forward.instrs) {
    const auto in = reads(instr);
    const bool all = !in.empty() && std::all_of(in.begin(), in.end(), [&](int slot) {
      return out[static_cast<size_t>(slot)];
    });
    for (int made : instr.outs)
      if (made >= 0) out[static_cast<size_t>(made)] = all;
  }
  return out;
}

std::vector<Instr> take_weight_part(const Program& program, std::vector<Instr>& backward,
                                    const std::vector<int>& roots) {
  std::vector<bool> wanted(program.slots.size(), false);
  for (int slot : roots) wanted[static_cast<size_t>(slot)] = true;
  std::vector<bool> stays(backward.size(), false);
  for (size_t i = backward.size(); i-- > 0;) {
    const Instr& instr = backward[i];
    stays[i] =
        instr.kind != InstrKind::accumulate &&
        (has_effect(instr) || std::any_of(instr.outs.begin(), instr.outs.end(), [&](int slot) {
           return slot >= 0 && wanted[static_cast<size_t>(slot)];
         }));
    if (stays[i])
      for (int slot : reads(instr)) wanted[static_cast<size_t>(slot)] = true;
  }
  std::vector<Instr> kept, taken;
  for (size_t i = 0; i < backward.size(); ++i)
    (stays[i] ? kept : taken).push_back(std::move(backward[i]));
  backward = std::move(kept);
  return taken;
}

}  // namespace nns::lower
