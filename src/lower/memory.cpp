#include "lower/memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "lower/memory_walk.h"
#include "lower/storage.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

std::map<std::pair<int, SegmentKind>, MemoryPart> parts_of(const Program& program) {
  std::map<std::pair<int, SegmentKind>, MemoryPart> parts;
  const Storage storage(program);
  Walk walk(program, storage);
  int64_t begin = 0;  // of the stage
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const int64_t before = walk.now, host = walk.host;
    if (segment.kind == SegmentKind::forward) begin = before;
    MemoryPart part;
    for (const auto& [node, top] : walk.segment(segment, before)) part.tops[node] = top.bytes;
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
  out.casts = bytes_of_casts(program);
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
  int64_t now = of.casts, host = 0;
  out.peak = now;
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
  int64_t now = of.casts;
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
