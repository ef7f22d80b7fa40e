// Gathers of weights that rest in shards begin a repeated block ahead: while it computes, those of
// the next one are under way, and no more than two blocks have whole weights at one time.
#include <set>

#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

// Of an instance "transformer.h.3": "transformer.h".
std::string list_of(const BlockRun& run) {
  return run.path.substr(0, run.path.rfind('.'));
}

}  // namespace

std::vector<size_t> gathers_of(const Program& program, const Segment& segment,
                               const BlockRun& run) {
  std::vector<size_t> out;
  std::set<int> seen;
  for (size_t i = run.first; i < run.last; ++i) {
    const Instr& instr = segment.instrs[i];
    if (instr.kind != InstrKind::call ||
        communication_of(instr) != operators::Communication::all_gather)
      continue;
    const int weight = reads(instr).at(0);
    if (weight_of(program, weight) >= 0 && seen.insert(weight).second) out.push_back(i);
  }
  return out;
}

void gather_ahead(Program& program) {
  for (Segment& segment : program.segments) {
    const auto& blocks = segment.blocks;
    for (size_t k = 0; k < blocks.size(); ++k) {
      if (gathers_of(program, segment, blocks[k]).empty()) continue;
      const bool next = k > 0 && blocks[k].body == blocks[k - 1].body &&
                        blocks[k].first == blocks[k - 1].last &&
                        list_of(blocks[k]) == list_of(blocks[k - 1]);
      const size_t after = k == 0 ? 0 : next ? blocks[k - 1].first : blocks[k - 1].last;
      if (after < blocks[k].first) segment.ahead.push_back({after, k});
    }
  }
}

std::vector<size_t> begin_order(const Program& program, const Segment& segment) {
  std::vector<size_t> order;
  std::vector<bool> begun(segment.instrs.size(), false);
  auto mark = segment.ahead.begin();
  for (size_t i = 0; i < segment.instrs.size(); ++i) {
    for (; mark != segment.ahead.end() && mark->after == i; ++mark) {
      for (const size_t g : gathers_of(program, segment, segment.blocks[mark->block])) {
        begun[g] = true;
        order.push_back(g);
      }
    }
    if (!begun[i]) order.push_back(i);
  }
  return order;
}

}  // namespace nns::lower
