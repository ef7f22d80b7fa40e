// Dependencies of a schedule: the time line under free links, and the proof that there is one.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "lower/schedule/schedule.h"

namespace nns::lower {
namespace {

using Part = std::tuple<char, int, int>;  // kind, stage, micro

std::string text(const Action& a) {
  return fmt::format("{}{} of stage {}", a.kind, a.micro, a.stage);
}

// What must have ended before an action starts.
std::vector<Part> needs(const Schedule& s, const Action& a) {
  if (a.kind == 'F')
    return a.stage > 0 ? std::vector<Part>{{'F', a.stage - 1, a.micro}} : std::vector<Part>{};
  if (a.kind == 'W') return {{'B', a.stage, a.micro}};
  std::vector<Part> out{{'F', a.stage, a.micro}};
  if (a.stage + 1 < s.stages) out.push_back({'B', a.stage + 1, a.micro});
  return out;
}

double duration(const Schedule& s, const Action& a, const std::vector<StageTimes>& times) {
  const StageTimes& t = times[times.size() == 1 ? 0 : static_cast<size_t>(a.stage)];
  if (a.kind == 'F') return t.forward;
  if (a.kind == 'W') return t.weight;
  return s.split_backward ? t.backward : t.backward + t.weight;
}

}  // namespace

std::vector<std::vector<Timed>> time_line(const Schedule& s, const std::vector<StageTimes>& times) {
  std::map<Part, double> ended;
  std::vector<std::vector<Timed>> lines(s.orders.size());
  std::vector<size_t> next(s.orders.size(), 0);
  std::vector<double> free_at(s.orders.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t r = 0; r < s.orders.size(); ++r) {
      while (next[r] < s.orders[r].size()) {
        const Action& a = s.orders[r][next[r]];
        double start = free_at[r];
        bool ready = true;
        for (const Part& p : needs(s, a)) {
          const auto done = ended.find(p);
          ready = ready && done != ended.end();
          if (ready) start = std::max(start, done->second);
        }
        if (!ready) break;
        const double stop = start + duration(s, a, times);
        ended[{a.kind, a.stage, a.micro}] = free_at[r] = stop;
        lines[r].push_back({a, start, stop});
        ++next[r];
        moved = true;
      }
    }
  }
  // Of ranks that wait for each other, one that waits for itself is the cause.
  for (const bool own : {true, false})
    for (size_t r = 0; r < s.orders.size(); ++r) {
      if (next[r] == s.orders[r].size()) continue;
      const Action& a = s.orders[r][next[r]];
      for (const auto& [kind, stage, micro] : needs(s, a))
        if (!ended.contains({kind, stage, micro}) &&
            (!own || s.rank_of(stage, micro) == static_cast<int>(r)))
          fail(ErrorKind::plan,
               "[lower.schedule] '{}': rank {} waits for ever at {}: {} never ends before it",
               s.name, r, text(a), text({kind, stage, micro}));
    }
  return lines;
}

void check(const Schedule& s) {
  std::map<Part, int> seen;
  for (size_t r = 0; r < s.orders.size(); ++r)
    for (const Action& a : s.orders[r]) {
      const bool known =
          a.kind == 'F' || (s.training && (a.kind == 'B' || (s.split_backward && a.kind == 'W')));
      if (!known || a.stage < 0 || a.stage >= s.stages || a.micro < 0 || a.micro >= s.micros)
        fail(ErrorKind::plan,
             "[lower.schedule] '{}': rank {} runs {}; expected F{} of stages 0 to {}, "
             "micro-batches 0 to {}",
             s.name, r, text(a), s.training ? (s.split_backward ? ", B or W" : " or B") : "",
             s.stages - 1, s.micros - 1);
      if (s.rank_of(a.stage, a.micro) != static_cast<int>(r))
        fail(ErrorKind::plan, "[lower.schedule] '{}': rank {} runs {}, which lives on rank {}",
             s.name, r, text(a), s.rank_of(a.stage, a.micro));
      if (++seen[{a.kind, a.stage, a.micro}] > 1)
        fail(ErrorKind::plan, "[lower.schedule] '{}': {} runs twice (rank {})", s.name, text(a), r);
    }
  const std::string kinds = !s.training ? "F" : s.split_backward ? "FBW" : "FB";
  for (int stage = 0; stage < s.stages; ++stage)
    for (int micro = 0; micro < s.micros; ++micro)
      for (char kind : kinds)
        if (!seen.contains({kind, stage, micro}))
          fail(ErrorKind::plan, "[lower.schedule] '{}': {} never runs", s.name,
               text({kind, stage, micro}));
  time_line(s, {StageTimes{}});
}

}  // namespace nns::lower
