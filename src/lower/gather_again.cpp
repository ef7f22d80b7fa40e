// Weights that rest in shards are gathered again where they are used again.
#include <map>

#include "lower/passes.h"
#include "lower/uses.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

// For each slot that a segment computes from sharded weights alone, the call that made it. Another
// segment can make the slot again for the price of a gather.
class Gathered {
 public:
  Gathered(const Program& program, const Segment& segment) {
    for (const Instr& instr : segment.instrs) {
      if (instr.kind != InstrKind::call || instr.outs.size() != 1) continue;
      const std::vector<int> in = reads(instr);
      if (in.empty()) continue;
      const bool gather = communication_of(instr) == operators::Communication::all_gather &&
                          program.slot(in[0]).role == SlotRole::parameter;
      const operators::Record* info = operators::find(instr.op);
      const bool view =
          info != nullptr && is_view(info->view) && in.size() == 1 && calls_.contains(in[0]);
      if (gather || view) calls_.emplace(instr.outs[0], instr);
    }
  }

  const Instr* call(int slot) const {
    const auto it = calls_.find(slot);
    return it == calls_.end() ? nullptr : &it->second;
  }
  bool empty() const { return calls_.empty(); }

 private:
  std::map<int, Instr> calls_;
};

class Again {
 public:
  Again(Program& program, const Gathered& gathered) : program_(program), gathered_(gathered) {}

  void run(Segment& segment) {
    std::vector<Instr> old = std::move(segment.instrs);
    segment.instrs.clear();
    for (Instr& instr : old) {
      for_each_ref(instr.args, [&](Ref& ref) { ref = anew(ref, instr, segment.instrs); });
      segment.instrs.push_back(std::move(instr));
    }
  }

 private:
  // The slot that stands for `ref` in this segment; what is missing is written in front of `user`.
  Ref anew(Ref ref, const Instr& user, std::vector<Instr>& out) {
    const Instr* call = gathered_.call(ref.id);
    if (call == nullptr) return ref;
    if (const auto it = made_.find(ref.id); it != made_.end()) return it->second;
    Instr copy = *call;
    for_each_ref(copy.args, [&](Ref& operand) { operand = anew(operand, user, out); });
    copy.node = user.node;
    copy.module = user.module;
    copy.loc = user.loc;
    Slot slot = program_.slot(ref.id);
    slot.id = static_cast<int>(program_.slots.size());
    copy.outs = {slot.id};
    program_.slots.push_back(std::move(slot));
    out.push_back(std::move(copy));
    return made_[ref.id] = Ref{program_.slots.back().id};
  }

  Program& program_;
  const Gathered& gathered_;
  std::map<int, Ref> made_;
};

}  // namespace

void gather_again(Program& program) {
  for (size_t s = 0; s + 1 < program.segments.size(); ++s) {
    const Gathered gathered(program, program.segments[s]);
    if (gathered.empty()) continue;
    for (size_t later = s + 1; later < program.segments.size(); ++later)
      Again(program, gathered).run(program.segments[later]);
  }
}

}  // namespace nns::lower
