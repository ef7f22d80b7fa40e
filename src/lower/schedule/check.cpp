// Dependencies of a schedule: the time line under free links, and the proof that there is one.
#include <algorithm>

#include "base/error.h"
#include "lower/schedule/schedule.h"

namespace nns::lower {
namespace {

std::string text(const Action& a) {
  return fmt::format("{}{} of stage {}", a.kind, a.micro, a.stage);
}

// Parts of a schedule in a row.
class Parts {
 public:
  explicit Parts(const Schedule& s)
      : stages_(static_cast<size_t>(s.stages)), micros_(static_cast<size_t>(s.micros)) {}
  size_t size() const { return 3 * stages_ * micros_; }
  size_t operator()(const Action& a) const {
    const size_t kind = a.kind == 'F' ? 0 : a.kind == 'B' ? 1 : 2;
    return (kind * stages_ + static_cast<size_t>(a.stage)) * micros_ + static_cast<size_t>(a.micro);
  }

 private:
  const size_t stages_, micros_;
};

// Visits what must have ended before an action starts.
template <class F>
void for_each_need(const Schedule& s, const Action& a, F visit) {
  if (a.kind == 'F') {
    if (a.stage > 0) visit(Action{'F', a.stage - 1, a.micro});
  } else if (a.kind == 'W') {
    visit(Action{'B', a.stage, a.micro});
  } else {
    visit(Action{'F', a.stage, a.micro});
    if (a.stage + 1 < s.stages) visit(Action{'B', a.stage + 1, a.micro});
  }
}

// Visits the ranks that run an action.
template <class F>
void for_each_rank(const Schedule& s, const Action& a, F visit) {
  if (s.together.empty()) return visit(static_cast<size_t>(s.rank_of(a.stage, a.micro)));
  for (int rank : s.together[static_cast<size_t>(a.stage)]) visit(static_cast<size_t>(rank));
}

double duration(const Schedule& s, const Action& a, const std::vector<StageTimes>& times) {
  const StageTimes& t = times[times.size() == 1 ? 0 : static_cast<size_t>(a.stage)];
  if (a.kind == 'F') return t.forward;
  if (a.kind == 'W') return t.weight;
  return s.split_backward ? t.backward : t.backward + t.weight;
}

}  // namespace

std::vector<std::vector<Timed>> time_line(const Schedule& s, const std::vector<StageTimes>& times) {
  constexpr double kNever = -1;
  const Parts parts(s);
  std::vector<double> ended(parts.size(), kNever);
  std::vector<std::vector<Timed>> lines(s.orders.size());
  for (size_t r = 0; r < s.orders.size(); ++r) lines[r].reserve(s.orders[r].size());
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
        for_each_rank(s, a, [&](size_t o) {
          ready = ready && next[o] < s.orders[o].size() && s.orders[o][next[o]] == a;
          start = std::max(start, free_at[o]);
        });
        for_each_need(s, a, [&](const Action& need) {
          const double done = ended[parts(need)];
          ready = ready && done != kNever;
          start = std::max(start, done);
        });
        if (!ready) break;
        const double stop = start + duration(s, a, times);
        ended[parts(a)] = stop;
        for_each_rank(s, a, [&](size_t o) {
          free_at[o] = stop;
          lines[o].push_back({a, start, stop});
          ++next[o];
        });
        moved = true;
      }
    }
  }
  // Of ranks that wait for each other, one that waits for itself is the cause.
  for (const bool own : {true, false})
    for (size_t r = 0; r < s.orders.size(); ++r) {
      if (next[r] == s.orders[r].size()) continue;
      const Action& a = s.orders[r][next[r]];
      for_each_need(s, a, [&](const Action& need) {
        if (ended[parts(need)] == kNever &&
            (!own || s.rank_of(need.stage, need.micro) == static_cast<int>(r)))
          fail(ErrorKind::plan,
               "[lower.schedule] '{}': rank {} waits for ever at {}: {} never ends before it",
               s.name, r, text(a), text(need));
      });
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
  const Parts parts(s);
  std::vector<std::vector<int>> seen(parts.size());  // the ranks that run a part
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
      auto& there = seen[parts(a)];
      if (std::find(there.begin(), there.end(), rank) != there.end())
        fail(ErrorKind::plan, "[lower.schedule] '{}': {} runs twice (rank {})", s.name, text(a), r);
      there.push_back(rank);
    }
  const std::string kinds = !s.training ? "F" : s.split_backward ? "FBW" : "FB";
  for (int stage = 0; stage < s.stages; ++stage)
    for (int micro = 0; micro < s.micros; ++micro)
      for (char kind : kinds) {
        const auto& there = seen[parts({kind, stage, micro})];
        if (there.empty())
          fail(ErrorKind::plan, "[lower.schedule] '{}': {} never runs", s.name,
               text({kind, stage, micro}));
        for (int rank : s.ranks_of(stage, micro))
          if (std::find(there.begin(), there.end(), rank) == there.end())
            fail(ErrorKind::plan, "[lower.schedule] '{}': {} never runs on rank {}", s.name,
                 text({kind, stage, micro}), rank);
      }
  time_line(s, {StageTimes{}});
}

}  // namespace nns::lower
