#include "lower/memory_phases.h"

#include "lower/memory_walk.h"
#include "lower/strides.h"

namespace nns::lower {
namespace {

// What a part of a stage does to memory in one micro-batch.
struct Part {
  int64_t rise = 0;  // the most above what was there at its begin
  int64_t rise_gradients = 0;
  int64_t net = 0, gradients = 0;  // what it leaves, and how much of that is gradients
  int64_t answered = 0;            // gradients that it sends to other stages
};
using Parts = std::map<std::pair<int, SegmentKind>, Part>;

GradientHomes homes_of(const Program& program, bool apart) {
  GradientHomes homes{.apart = apart};
  for (const GradientSet& set : program.sets) {
    int64_t bytes = 0;
    for (int slot : set.parameters) {
      bytes += bytes_of(gradient_type(program.slot(slot)));
      if (!set.ranks.empty() || set.scatter)
        homes.set_of[slot] = static_cast<int>(homes.bytes.size());
    }
    homes.bytes.push_back(bytes);
  }
  return homes;
}

// Results beside the loss, which the step keeps.
std::vector<int> results_of(const Program& program, const Segment& segment) {
  if (!program.returns(segment) || segment.outputs.empty()) return {};
  return {segment.outputs.begin() + 1, segment.outputs.end()};
}

Parts parts_of(const Program& program, Walk<Strides>& walk) {
  Parts parts;
  int64_t begin = 0, had = 0;  // of the stage, and of gradients
  int64_t results = 0;
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const int64_t before = walk.now, gradients = walk.gradients;
    if (segment.kind == SegmentKind::forward) {
      begin = before;
      had = gradients;
      results = 0;
    }
    Part part;
    for (const auto& [node, top] : walk.segment(segment, before))
      if (top.bytes > part.rise) {
        part.rise = top.bytes;
        part.rise_gradients = top.gradients - gradients;
      }
    if (const std::vector<int> slots = results_of(program, segment); !slots.empty())
      results = walk.held_by(slots);
    // Nothing of the micro-batch stays but gradients and results.
    if (s + 1 == program.segments.size() || program.segments[s + 1].kind == SegmentKind::forward)
      walk.now = begin + walk.gradients - had + results;
    part.net = walk.now - before;
    part.gradients = walk.gradients - gradients;
    part.answered = walk.answered;
    parts.emplace(std::pair(segment.stage, segment.kind), part);
  }
  walk.next();
  return parts;
}

void note(Phase& phase, int64_t total, int64_t gradients) {
  if (total > phase.total()) phase = {total - gradients, gradients};
}

}  // namespace

Phases phases(const Program& program, const std::vector<Action>& order, bool apart) {
  const GradientHomes homes = homes_of(program, apart);
  const Strides strides(program);
  Walk<Strides> walk(program, strides, &homes);
  const Parts first = parts_of(program, walk), later = parts_of(program, walk);
  Phases out;
  // A gradient that was sent is there until the other stage, which may be late, has taken it.
  const int64_t casts = bytes_of_casts(program);
  int64_t now = casts, gradients = 0, waiting = 0;
  std::map<std::pair<int, SegmentKind>, bool> ran;
  const auto run = [&](int stage, char letter) {
    const SegmentKind kind = letter == 'F'   ? SegmentKind::forward
                             : letter == 'B' ? SegmentKind::backward
                                             : SegmentKind::weight;
    const std::pair key(stage, kind);
    bool& again = ran[key];
    const Parts& parts = again ? later : first;
    const auto found = parts.find(key);
    if (found == parts.end()) return;  // a stage without gradients
    again = true;
    const Part& part = found->second;
    note(out.backward, now + waiting + part.rise, gradients + part.rise_gradients);
    now += part.net;
    gradients += part.gradients;
    if (kind == SegmentKind::forward) note(out.forward, now + waiting, gradients);
    if (kind != SegmentKind::forward) waiting = part.answered;
  };
  for (const Action& action : order) run(action.stage, action.kind);
  if (order.empty())
    for (const Segment& segment : program.segments) run(segment.stage, letter_of(segment.kind));
  out.step = {now - gradients - casts, gradients};
  return out;
}

}  // namespace nns::lower
