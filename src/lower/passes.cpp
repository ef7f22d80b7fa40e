// Dead calls, values handed from forward to backward, reuse of memory.
#include "lower/passes.h"

#include <algorithm>
#include <set>

#include "lower/uses.h"
#include "operators/record.h"

namespace nns::lower {

bool makes_memory(const Instr& instr) {
  const operators::Record* record = operators::find(instr.op);
  return record != nullptr && !is_view(record->view) && !record->identity;
}

bool has_effect(const Instr& instr) {
  using operators::Communication;
  const operators::Record* record = operators::find(instr.op);
  if (record == nullptr) return false;
  switch (record->communication) {
    case Communication::send:
    case Communication::receive:
    case Communication::move:
    case Communication::exchange:
    case Communication::rotate:
    case Communication::zigzag:
      return true;
    default:
      return record->hook;
  }
}

bool is_owned(const Instr& instr) {
  for (const NamedArg& a : instr.args)
    if (a.name == "owned") return std::get<bool>(a.value);
  return false;
}

void remove_dead_calls(Program& program, const std::vector<int>& unsent) {
  std::vector<bool> needed(program.slots.size(), false), wanted = needed;
  for (int slot : unsent) wanted[static_cast<size_t>(slot)] = true;
  for (size_t s = program.segments.size(); s-- > 0;) {
    Segment& segment = program.segments[s];
    for (int out : segment.outputs) needed[static_cast<size_t>(out)] = true;
    std::vector<Instr> kept;
    for (size_t i = segment.instrs.size(); i-- > 0;) {
      Instr& instr = segment.instrs[i];
      const auto any_out = [&](const std::vector<bool>& flags) {
        return std::any_of(instr.outs.begin(), instr.outs.end(),
                           [&](int out) { return out >= 0 && flags[static_cast<size_t>(out)]; });
      };
      const bool asked = any_out(wanted);
      const bool live = instr.kind != InstrKind::call || has_effect(instr) || any_out(needed) ||
                        (asked && is_collective(instr));
      for (int slot : reads(instr))
        if (asked) wanted[static_cast<size_t>(slot)] = true;
      if (!live) continue;
      for (int slot : reads(instr)) needed[static_cast<size_t>(slot)] = true;
      kept.push_back(std::move(instr));
    }
    std::reverse(kept.begin(), kept.end());
    segment.instrs = std::move(kept);
  }
}

void find_saved(Program& program) {
  std::vector<int> maker(program.slots.size(), -1);
  for (size_t s = 0; s < program.segments.size(); ++s) {
    Segment& segment = program.segments[s];
    std::set<int> taken;
    for (int in : segment.inputs) maker[static_cast<size_t>(in)] = static_cast<int>(s);
    for (const Instr& instr : segment.instrs) {
      for (int slot : reads(instr)) {
        const int from = maker[static_cast<size_t>(slot)];
        if (from < 0 || from == static_cast<int>(s) || !taken.insert(slot).second) continue;
        segment.saved_in.push_back(slot);
        program.segments[static_cast<size_t>(from)].saved_out.push_back(slot);
      }
      for (int out : instr.outs)
        if (out >= 0) maker[static_cast<size_t>(out)] = static_cast<int>(s);
    }
  }
  for (Segment& segment : program.segments) {
    std::sort(segment.saved_in.begin(), segment.saved_in.end());
    auto& out = segment.saved_out;  // several segments may read one
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
  }
}

namespace {

// Slots that may share memory, by the call that made it.
class Memory {
 public:
  Memory(const Program& program, const Segment& segment)
      : program_(program),
        root_(program.slots.size(), -1),
        last_(program.slots.size(), -1),
        renamed_(program.slots.size(), -1) {
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      const std::vector<int> in = reads(instr);
      for (int slot : in)
        if (root_[at(slot)] >= 0) last_[at(root_[at(slot)])] = static_cast<int>(i);
      if (instr.kind != InstrKind::call) continue;
      for (int out : instr.outs) {
        if (out < 0) continue;
        // A view belongs to what it looks at; where that is unknown, to nobody.
        root_[at(out)] = makes_memory(instr) ? out : in.empty() ? -1 : root_[at(in[0])];
        if (!makes_memory(instr) && is_again(instr)) root_[at(out)] = -1;
      }
    }
    for (int slot : segment.saved_out) keep(slot);
    for (int slot : segment.outputs) keep(slot);
  }

  // Whether the tensor is all of the memory of a call of this segment and nothing reads that memory
  // after instruction `i`.
  bool dies_at(int slot, size_t i) const {
    const int root = this->root(slot);
    return root >= 0 && last_[at(root)] == static_cast<int>(i) &&
           bytes_of(program_.slot(slot).type) == bytes_of(program_.slot(root).type);
  }
  bool is_root(int slot) const { return root(slot) == slot; }
  int root(int slot) const {
    int root = root_[at(slot)];
    while (root >= 0 && renamed_[at(root)] >= 0) {
      const int next = renamed_[at(root)];
      if (renamed_[at(next)] >= 0) renamed_[at(root)] = renamed_[at(next)];  // shorter next time
      root = next;
    }
    return root;
  }
  // After `slot` was written in place, `result` is its name.
  void rename(int slot, int result, int last_use) {
    renamed_[at(slot)] = result;
    last_[at(result)] = last_use;
  }
  int last_use(int slot) const { return last_[at(slot)]; }

 private:
  static size_t at(int slot) { return static_cast<size_t>(slot); }
  void keep(int slot) {
    if (root_[at(slot)] >= 0) last_[at(root_[at(slot)])] = INT32_MAX;
  }

  const Program& program_;
  std::vector<int> root_, last_;
  mutable std::vector<int> renamed_;
};

bool is_expansion(const Instr& instr) {
  const operators::Record* record = operators::find(instr.op);
  return record != nullptr && record->view == operators::View::spread;
}

void sum_in_place(const Program& program, Memory& memory, Instr& instr, size_t i) {
  const auto operand = [&](size_t k) { return std::get<Ref>(instr.args[k].value).id; };
  const operators::Record* record = operators::find(instr.op);
  const bool sum = record != nullptr && record->kind == operators::Kind::sum &&
                   std::all_of(instr.args.begin(), instr.args.end(), [](const NamedArg& a) {
                     return std::holds_alternative<Ref>(a.value);
                   });
  if (!sum || instr.args.size() != 2) return;
  const int a = operand(0), b = operand(1), out = instr.outs[0];
  if (a == b || memory.root(a) == memory.root(b)) return;
  for (const auto& [into, other] : {std::pair(a, b), std::pair(b, a)}) {
    if (!memory.is_root(into) || !memory.dies_at(into, i)) continue;
    if (program.slot(into).type != program.slot(out).type) continue;
    instr.op = "aten::add_.Tensor";
    instr.args[0].value = Ref{into};
    instr.args[1].value = Ref{other};
    memory.rename(into, out, memory.last_use(out));
    return;
  }
}

}  // namespace

void reuse_memory(Program& program) {
  for (Segment& segment : program.segments) {
    if (segment.saved_in.empty()) continue;  // only sums of gradients
    Memory memory(program, segment);
    std::vector<bool> expanded(program.slots.size(), false);
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      Instr& instr = segment.instrs[i];
      if (instr.kind == InstrKind::accumulate) {
        const int value = std::get<Ref>(instr.args[0].value).id;
        const bool copied = !memory.is_root(value) && expanded[static_cast<size_t>(value)];
        instr.args.push_back({"owned", !copied && memory.dies_at(value, i)});
      } else if (instr.kind == InstrKind::call) {
        if (is_expansion(instr))
          for (int out : instr.outs)
            if (out >= 0) expanded[static_cast<size_t>(out)] = true;
        sum_in_place(program, memory, instr, i);
      }
    }
  }
}

}  // namespace nns::lower
