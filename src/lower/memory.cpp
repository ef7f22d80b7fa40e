#include "lower/memory.h"

#include <algorithm>
#include <set>

#include "lower/storage.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

// Walks the segments in order and counts memory as instructions take and release it.
class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program), storage_(program), live_(program.slots.size(), 0) {}

  void segment(const Segment& segment) {
    for (const Instr& instr : segment.instrs) {
      for (int out : instr.outs)
        if (out >= 0) make(out);
      peak = std::max(peak, now);
      switch (instr.kind) {
        case InstrKind::release:
          for (int slot : reads(instr)) drop(slot);
          break;
        case InstrKind::accumulate:  // it is the gradient now
          if (is_owned(instr)) drop(reads(instr)[0]);
          break;
        case InstrKind::call:
          if (is_in_place(instr.op)) drop(reads(instr)[0]);
          break;
        case InstrKind::update:
          break;
      }
    }
  }

  int64_t now = 0, peak = 0;

 private:
  int& names_of(int slot) { return live_[static_cast<size_t>(storage_.root(slot))]; }
  bool counts(int slot) const { return is_local(program_, storage_.root(slot)); }
  void make(int slot) {
    if (counts(slot) && names_of(slot)++ == 0) now += storage_.bytes(storage_.root(slot));
  }
  void drop(int slot) {
    if (counts(slot) && --names_of(slot) == 0) now -= storage_.bytes(storage_.root(slot));
  }

  const Program& program_;
  const Storage storage_;
  std::vector<int> live_;  // by root: slots that hold its memory
};

}  // namespace

Memory memory(const Program& program, const std::vector<TensorType>& slots) {
  Memory out;
  for (const TensorType& slot : slots) out.optimizer += bytes_of(slot);
  const auto sum = [&](const std::vector<int>& slots) {
    int64_t bytes = 0;
    for (int slot : slots) bytes += bytes_of(program.slot(slot).type);
    return bytes;
  };
  out.parameters = sum(program.parameters);
  out.buffers = sum(program.buffers);
  out.constants = sum(program.constants);
  std::set<int> accumulated;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::accumulate) accumulated.insert(instr.target);
  for (int slot : accumulated) out.gradients += bytes_of(program.slot(slot).type);
  Walk walk(program);
  for (const Segment& segment : program.segments) {
    walk.segment(segment);
    out.saved = std::max(out.saved, walk.now);
  }
  out.peak = walk.peak;
  return out;
}

}  // namespace nns::lower
