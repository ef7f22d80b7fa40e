// Weights that rest in shards are gathered again where they are used again.
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
                          weight_of(program, in[0]) >= 0;
      const operators::Record* info = operators::find(instr.op);
      const bool view =
          info != nullptr && is_view(info->view) && in.size() == 1 && calls_.contains(in[0]);
      if (gather || view) calls_.emplace(instr.outs[0], instr);
    }
  }

  const Remakes& calls() const { return calls_; }

 private:
  Remakes calls_;
};

}  // namespace

void gather_again(Program& program) {
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Gathered gathered(program, program.segments[s]);
    for (size_t later = s + 1; later < program.segments.size(); ++later)
      read_again(program, gathered.calls(), program.segments[later]);
  }
}

}  // namespace nns::lower
