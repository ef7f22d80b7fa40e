// Who reads and writes the slots of a segment: shared by the passes.
#pragma once

#include <vector>

#include "base/error.h"
#include "lower/emitter.h"
#include "lower/program.h"

namespace nns::lower {

// Slots an instruction reads, in argument order, repeats kept.
inline std::vector<int> reads(const Instr& instr) {
  std::vector<int> slots;
  for_each_ref(instr.args, [&](Ref ref) { slots.push_back(ref.id); });
  return slots;
}

// An argument by name, or nullptr.
inline const Arg* find_arg(const Instr& instr, std::string_view name) {
  for (const NamedArg& a : instr.args)
    if (a.name == name) return &a.value;
  return nullptr;
}

// An argument that must be there.
template <class T>
const T& argument(const Instr& instr, std::string_view name) {
  const Arg* arg = find_arg(instr, name);
  NNS_CHECK(arg != nullptr, "{} has no argument {}", instr.op, name);
  return std::get<T>(*arg);
}

inline bool is_message(const Instr& instr) {
  return instr.op == "comm::send" || instr.op == "comm::receive";
}
// Whether the ranks of a group make this call together.
inline bool is_collective(const Instr& instr) {
  return instr.kind == InstrKind::call && instr.op.starts_with("comm::") && !is_message(instr) &&
         find_arg(instr, "group") != nullptr && instr.op != "comm::value_chunk";
}

// Whether a run of the program owns the slot's tensor: what it makes itself.
inline bool is_local(const Program& program, int slot) {
  return program.slot(slot).role == SlotRole::activation ||
         program.slot(slot).role == SlotRole::gradient;
}

// Whether the result of `op` has memory of its own. Unknown operators count as views.
bool makes_memory(std::string_view op);
// Whether `op` does something beside its results: other ranks wait for it, or the user does.
inline bool has_effect(std::string_view op) {
  return op == "comm::send" || op == "comm::receive" || op == "comm::move" ||
         op.starts_with("hook::");
}
// Whether `op` writes its first argument and returns it.
inline bool is_in_place(std::string_view op) {
  const size_t end = std::min(op.find('.'), op.size());
  return end > 0 && op[end - 1] == '_' && op.substr(0, end).find("__") == std::string_view::npos;
}
// Whether an accumulation takes the tensor over instead of copying it.
bool is_owned(const Instr& accumulate);

}  // namespace nns::lower
