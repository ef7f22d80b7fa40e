#include "lower/memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "lower/storage.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

// Walks the segments in order and counts memory as instructions take and release it.
class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program),
        storage_(program),
        on_host_(on_host(program)),
        live_(program.slots.size(), 0) {}

  // Notes the most that is there while instructions of a node run, above `before`.
  void segment(const Segment& segment, int64_t before, std::map<int, int64_t>& tops) {
    int node = -1;
    int64_t* top = &tops[node];
    *top = now - before;
    // The answer to a message proves that its bytes are gone: the gradient of what was sent.
    if (segment.kind == SegmentKind::backward) {
      for (int slot : sent_) drop(slot);
      sent_.clear();
    }
    auto mark = segment.ahead.begin();
    std::set<int> begun;  // what gathers ahead have memory for
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      for (; mark != segment.ahead.end() && mark->after == i; ++mark)
        begin(segment, segment.blocks[mark->block], begun);
      if (communication_of(instr) == operators::Communication::send &&
          segment.kind == SegmentKind::forward) {
        const int slot = reads(instr)[0];
        make(slot);  // a further name of its memory
        sent_.push_back(slot);
      }
      for (int out : instr.outs)
        if (out >= 0 && begun.erase(out) == 0) make(out);
      if (instr.node >= 0 && instr.node != node) {
        node = instr.node;
        top = &tops.try_emplace(node, now - before).first->second;
      }
      *top = std::max(*top, now - before);
      switch (instr.kind) {
        case InstrKind::release:
          for (int slot : reads(instr)) drop(slot);
          break;
        case InstrKind::accumulate:  // it is the gradient now
          if (is_owned(instr)) drop(reads(instr)[0]);
          break;
        case InstrKind::call:
          if (is_in_place(instr)) drop(reads(instr)[0]);
          break;
        case InstrKind::update:
          break;
      }
    }
  }

  // Bytes that nobody but a message holds.
  int64_t in_messages() {
    std::map<int, int> count;  // by root
    for (int slot : sent_) ++count[storage_.root(slot)];
    int64_t bytes = 0;
    for (const auto& [root, n] : count)
      if (counts(root) && names_of(root) == n) bytes += storage_.bytes(root);
    return bytes;
  }

  int64_t now = 0;
  int64_t host = 0;  // now, in its memory

 private:
  void begin(const Segment& segment, const BlockRun& run, std::set<int>& begun) {
    for (const size_t i : gathers_of(program_, segment, run)) {
      const int out = segment.instrs[i].outs.at(0);
      make(out);
      begun.insert(out);
    }
  }
  int& names_of(int slot) { return live_[static_cast<size_t>(storage_.root(slot))]; }
  bool counts(int slot) const { return is_local(program_, storage_.root(slot)); }
  int64_t& memory_of(int slot) { return on_host_.contains(storage_.root(slot)) ? host : now; }
  void make(int slot) {
    if (counts(slot) && names_of(slot)++ == 0)
      memory_of(slot) += storage_.bytes(storage_.root(slot));
  }
  void drop(int slot) {
    if (counts(slot) && --names_of(slot) == 0)
      memory_of(slot) -= storage_.bytes(storage_.root(slot));
  }

  const Program& program_;
  const Storage storage_;
  const std::set<int> on_host_;
  std::vector<int> live_;  // by root: slots that hold its memory
  std::vector<int> sent_;  // by the forward of the stage
};

std::map<std::pair<int, SegmentKind>, MemoryPart> parts_of(const Program& program) {
  std::map<std::pair<int, SegmentKind>, MemoryPart> parts;
  Walk walk(program);
  int64_t begin = 0;  // of the stage
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const int64_t before = walk.now, host = walk.host;
    if (segment.kind == SegmentKind::forward) begin = before;
    MemoryPart part;
    walk.segment(segment, before, part.tops);
    part.net = walk.now - before;
    part.saved = walk.now - before - walk.in_messages();
    part.host = walk.host - host;
    part.last =
        s + 1 == program.segments.size() || program.segments[s + 1].kind == SegmentKind::forward;
    // Results, such as the loss, go with the last part.
    if (part.last) {
      part.net = begin - before;
      walk.now = begin;
    }
    parts.emplace(std::pair(segment.stage, segment.kind), std::move(part));
  }
  return parts;
}

SegmentKind kind_of(char letter) {
  return letter == 'F'   ? SegmentKind::forward
         : letter == 'B' ? SegmentKind::backward
                         : SegmentKind::weight;
}

}  // namespace

int64_t MemoryPart::rise() const {
  int64_t most = 0;
  for (const auto& [node, top] : tops) most = std::max(most, top);
  return most;
}

MemoryParts memory_parts(const Program& program) {
  MemoryParts out{.rank = program.rank};
  const auto sum = [&](const std::vector<int>& slots) {
    int64_t bytes = 0;
    for (int slot : slots) bytes += bytes_of(program.slot(slot).type);
    return bytes;
  };
  out.parameters = sum(program.parameters);
  out.buffers = sum(program.buffers);
  out.constants = sum(program.constants);
  std::set<int> accumulated;
  for (const Segment& segment : program.segments) {
    out.sequence.emplace_back(segment.stage, segment.kind);
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::accumulate) accumulated.insert(instr.target);
  }
  for (int slot : accumulated) out.gradients += bytes_of(gradient_type(program.slot(slot)));
  out.parts = parts_of(program);
  return out;
}

Memory memory(const MemoryParts& of, const std::vector<Action>& order) {
  Memory out{of.parameters, of.gradients, of.buffers, of.constants};
  int64_t now = 0, host = 0;
  std::map<int, int> waiting;  // by stage
  struct Step {
    int64_t rise = 0, net = 0, saved = 0, host = 0;
    bool last = false;
  };
  std::map<std::pair<int, SegmentKind>, Step> steps;
  for (const auto& [key, part] : of.parts)
    steps.emplace(key, Step{part.rise(), part.net, part.saved, part.host, part.last});
  const auto run = [&](int stage, SegmentKind kind) {
    const auto found = steps.find({stage, kind});
    if (found == steps.end()) {  // a stage without gradients has a forward only
      if (kind != SegmentKind::forward) return;
      fail(ErrorKind::plan, "[lower.memory] rank {} does not run stage {}", of.rank, stage);
    }
    const Step& step = found->second;
    out.peak = std::max(out.peak, now + step.rise);
    now += step.net;
    out.host = std::max(out.host, host += step.host);
    if (kind == SegmentKind::forward) {
      out.saved = std::max(out.saved, step.saved);
      out.in_flight = std::max(out.in_flight, ++waiting[stage]);
    }
    if (step.last) --waiting[stage];
  };
  for (const Action& action : order) run(action.stage, kind_of(action.kind));
  if (order.empty())
    for (const auto& [stage, kind] : of.sequence) run(stage, kind);
  return out;
}

std::vector<MemoryAt> course(const MemoryParts& of, const std::vector<Action>& order) {
  std::vector<MemoryAt> out;
  int64_t now = 0;
  for (const Action& action : order) {
    const auto found = of.parts.find({action.stage, kind_of(action.kind)});
    const int64_t rise = found == of.parts.end() ? 0 : found->second.rise();
    const int64_t top = now + rise;
    if (found != of.parts.end()) now += found->second.net;
    out.push_back({top, now});
  }
  return out;
}

Memory memory(const Program& program, const std::vector<Action>& order) {
  return memory(memory_parts(program), order);
}

}  // namespace nns::lower
