// Makes slots of an earlier segment anew where a later one reads them.
#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

class Again {
 public:
  Again(Program& program, const Remakes& calls) : program_(program), calls_(calls) {}

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
    const auto call = calls_.find(ref.id);
    if (call == calls_.end()) return ref;
    if (const auto it = made_.find(ref.id); it != made_.end()) return it->second;
    Instr copy = call->second;
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
  const Remakes& calls_;
  std::map<int, Ref> made_;
};

}  // namespace

void read_again(Program& program, const Remakes& calls, Segment& segment) {
  if (!calls.empty()) Again(program, calls).run(segment);
}

}  // namespace nns::lower
