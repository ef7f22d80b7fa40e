// Who reads and writes the slots of a segment: shared by the passes.
#pragma once

#include <set>
#include <vector>

#include "base/error.h"
#include "lower/emitter.h"
#include "lower/program.h"
#include "operators/record.h"

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

// A call that runs the operator behind it again under LibTorch's autograd (Tape::fallback).
constexpr std::string_view kAgain = "vjp::";
inline bool is_again(const Instr& instr) {
  return instr.op.starts_with(kAgain);
}

// The part of a module path up to its last number: calls below it are written together.
std::string_view block_of(std::string_view module);

// How the call communicates.
inline operators::Communication communication_of(const Instr& instr) {
  const operators::Record* record = operators::find(instr.op);
  return record == nullptr ? operators::Communication::none : record->communication;
}
inline bool is_message(const Instr& instr) {
  const operators::Communication kind = communication_of(instr);
  return kind == operators::Communication::send || kind == operators::Communication::receive;
}
// The ranks that a communicating call names: its group, or its ring.
inline const Shape& ranks_of(const Instr& instr) {
  const Arg* ring = find_arg(instr, "ring");
  return ring != nullptr ? std::get<Shape>(*ring) : argument<Shape>(instr, "group");
}
// Whether the ranks of a group make this call together.
inline bool is_collective(const Instr& instr) {
  return instr.kind == InstrKind::call && find_arg(instr, "group") != nullptr &&
         communication_of(instr) != operators::Communication::none && !is_message(instr) &&
         communication_of(instr) != operators::Communication::value_chunk;
}

// The parameter whose elements a slot has, where it is one or the cast of one; else -1.
inline int weight_of(const Program& program, int slot) {
  if (program.slot(slot).role == SlotRole::parameter) return slot;
  if (program.slot(slot).role != SlotRole::cast) return -1;
  for (const Instr& instr : program.casts)
    if (instr.outs[0] == slot) return reads(instr).at(0);
  return -1;
}
// Bytes of the casts that all micro-batches of a step read.
inline int64_t bytes_of_casts(const Program& program) {
  int64_t bytes = 0;
  for (const Instr& instr : program.casts) bytes += bytes_of(program.slot(instr.outs[0]).type);
  return bytes;
}

// Whether a run of the program owns the slot's tensor: what it makes itself.
inline bool is_local(const Program& program, int slot) {
  return program.slot(slot).role == SlotRole::activation ||
         program.slot(slot).role == SlotRole::gradient;
}

// Slots whose tensors are copies in memory of the host.
std::set<int> on_host(const Program& program);

// Whether the result has memory of its own. Operators without a record count as views, and what
// autograd hands out may be what it was given.
bool makes_memory(const Instr& instr);
// Calls of a block that make weights whole which rest in shards, the first of each weight.
std::vector<size_t> gathers_of(const Program& program, const Segment& segment, const BlockRun& run);
// Instructions of a segment by the order in which they begin: gathers that begin ahead of their
// place stand where they are marked to.
std::vector<size_t> begin_order(const Program& program, const Segment& segment);
// Whether the call does something beside its results: other ranks wait for it, or a user does.
bool has_effect(const Instr& instr);
// Whether the call writes its first argument and returns it.
inline bool is_in_place(const Instr& instr) {
  return operators::is_in_place(instr.op);
}
// Whether an accumulation takes the tensor over instead of copying it.
bool is_owned(const Instr& accumulate);

}  // namespace nns::lower
