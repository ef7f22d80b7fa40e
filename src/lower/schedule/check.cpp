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
        const auto ranks = s.ranks_of(a.stage, a.micro);
        for (int other : ranks) {
          const auto o = static_cast<size_t>(other);
          ready = ready && next[o] < s.orders[o].size() && s.orders[o][next[o]] == a;
          start = std::max(start, free_at[o]);
        }
        for (const Part& p : needs(s, a)) {
          const auto done = ended.find(p);
          ready = ready && done != ended.end();
          if (ready) start = std::max(start, done->second);
        }
        if (!ready) break;
        const double stop = start + duration(s, a, times);
        ended[{a.kind, a.stage, a.micro}] = stop;
        for (int other : ranks) {
          const auto o = static_cast<size_t>(other);
          free_at[o] = stop;
          lines[o].push_back({a, start, stop});
          ++next[o];
        }
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
  for (size_t r = 0; r < s.orders.size(); ++r) {
    if (next[r] == s.orders[r].size()) continue;
    const Action& a = s.orders[r][next[r]];
    for (int other : s.ranks_of(a.stage, a.micro)) {
      const auto o = static_cast<size_t>(other);
      if (next[o] == s.orders[o].size() || s.orders[o][next[o]] != a)
        fail(
            ErrorKind::plan,
            "[lower.schedule] '{}': rank {} waits for ever at {}, which runs on rank {} too: there "
            "{} comes first",
            s.name, r, text(a), other,
            next[o] == s.orders[o].size() ? "the end" : text(s.orders[o][next[o]]));
    }
  }
  return lines;
}

void check(const Schedule& s) {
  std::map<Part, std::vector<int>> seen;  // the ranks that run a part
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
      const auto ranks = s.ranks_of(a.stage, a.micro);
      const int rank = static_cast<int>(r);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end())
        fail(ErrorKind::plan, "[lower.schedule] '{}': rank {} runs {}, which lives on rank {}",
             s.name, r, text(a), ranks.front());
      auto& there = seen[{a.kind, a.stage, a.micro}];
      if (std::find(there.begin(), there.end(), rank) != there.end())
        fail(ErrorKind::plan, "[lower.schedule] '{}': {} runs twice (rank {})", s.name, text(a), r);
      there.push_back(rank);
    }
  const std::string kinds = !s.training ? "F" : s.split_backward ? "FBW" : "FB";
  for (int stage = 0; stage < s.stages; ++stage)
    for (int micro = 0; micro < s.micros; ++micro)
      for (char kind : kinds) {
        const auto there = seen.find({kind, stage, micro});
        if (there == seen.end())
          fail(ErrorKind::plan, "[lower.schedule] '{}': {} never runs", s.name,
               text({kind, stage, micro}));
        for (int rank : s.ranks_of(stage, micro))
          if (std::find(there->second.begin(), there->second.end(), rank) == there->second.end())
            fail(ErrorKind::plan, "[lower.schedule] '{}': {} never runs on rank {}", s.name,
                 text({kind, stage, micro}), rank);
      }
  time_line(s, {StageTimes{}});
}

}  // namespace nns::lower
