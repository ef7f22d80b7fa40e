#include "lower/schedule/greedy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "base/error.h"

namespace nns::lower {
namespace {

class Greedy {
 public:
  Greedy(Schedule& s, const GreedyRules& rules) : s_(s), rules_(rules) {
    for (auto& ended : ended_) ended.assign(at(s_.stages) * at(s_.micros), kNever);
    of_rank_.resize(at(s_.ranks));
    for (int stage = 0; stage < s_.stages; ++stage) {
      std::vector<int> ranks = s_.placement[at(stage)];
      std::sort(ranks.begin(), ranks.end());
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      for (int rank : ranks) {
        Lane& lane = of_rank_[at(rank)].emplace_back(Lane{stage});
        for (int& next : lane.next) next = from(rank, stage, 0);
      }
    }
  }

  void run() {
    std::vector<int> free_at(at(s_.ranks), 0);
    const int per_kind = s_.stages * s_.micros;
    int left = per_kind * (!s_.training ? 1 : s_.split_backward ? 3 : 2);
    for (int t = 0; left > 0; ++t) {
      NNS_CHECK(t < 100 * (per_kind + 10), "schedule '{}' does not end", s_.name);
      std::vector<std::pair<int, Action>> chosen;
      for (int r = 0; r < s_.ranks; ++r) {
        if (free_at[at(r)] > t) continue;
        Action a;
        if (choose(r, t, a)) chosen.emplace_back(r, a);
      }
      for (const auto& [r, a] : chosen) {
        const int length = a.kind == 'B' && !s_.split_backward ? 2 : 1;
        free_at[at(r)] = t + length;
        ended(a.kind, a.stage, a.micro) = t + length;
        start(r, a);
        s_.orders[at(r)].push_back(a);
        --left;
      }
    }
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  // Parts of a stage that a rank has: of each kind the next micro-batch, how many wait between
  // forward and backward, and how many hold memory: until their gradients of weights are made.
  struct Lane {
    int stage = 0;
    std::array<int, 3> next = {};
    int holding = 0, kept = 0;
  };

  static size_t at(int i) { return static_cast<size_t>(i); }
  static size_t number_of(char kind) { return kind == 'F' ? 0 : kind == 'B' ? 1 : 2; }

  int& ended(char kind, int stage, int micro) {
    return ended_[number_of(kind)][at(stage) * at(s_.micros) + at(micro)];
  }
  bool done(char kind, int stage, int micro, int t) { return ended(kind, stage, micro) <= t; }

  // The first micro-batch from `micro` on whose part of a stage a rank has; none: their number.
  int from(int rank, int stage, int micro) const {
    while (micro < s_.micros && s_.rank_of(stage, micro) != rank) ++micro;
    return micro;
  }
  void start(int rank, const Action& a) {
    auto& lanes = of_rank_[at(rank)];
    const auto lane = std::find_if(lanes.begin(), lanes.end(),
                                   [&](const Lane& of) { return of.stage == a.stage; });
    lane->next[number_of(a.kind)] = from(rank, a.stage, a.micro + 1);
    if (a.kind == 'F') ++lane->holding, ++lane->kept;
    if (a.kind == 'B') --lane->holding;
    if (a.kind == (s_.split_backward ? 'W' : 'B')) --lane->kept;
  }

  bool choose(int r, int t, Action& out) {
    bool found = false;
    std::tuple<int, int, int> best{};
    const auto offer = [&](Action a, int urgency) {
      const std::tuple<int, int, int> key{urgency, a.micro, -a.stage};
      if (found && best <= key) return;
      found = true;
      best = key;
      out = a;
    };
    int total = 0, kept = 0;
    for (const Lane& lane : of_rank_[at(r)]) {
      total += lane.holding;
      kept += lane.kept;
    }
    for (const Lane& lane : of_rank_[at(r)]) {
      const int stage = lane.stage;
      const auto [forward, backward, weight] = lane.next;  // in order of micro-batch
      if (forward < s_.micros && (!rules_.in_flight || lane.holding < rules_.in_flight(r, stage)) &&
          total < rules_.total_in_flight && (!rules_.kept || kept < rules_.kept(r)) &&
          (stage == 0 || done('F', stage - 1, forward, t)))
        offer({'F', stage, forward}, 1);
      if (!s_.training) continue;
      if (backward < s_.micros && done('F', stage, backward, t) &&
          (stage + 1 == s_.stages || done('B', stage + 1, backward, t)))
        offer({'B', stage, backward}, 0);
      if (s_.split_backward && weight < s_.micros && done('B', stage, weight, t))
        offer({'W', stage, weight}, 2);
    }
    return found;
  }

  Schedule& s_;
  const GreedyRules& rules_;
  std::array<std::vector<int>, 3> ended_;   // by kind; by stage and micro-batch
  std::vector<std::vector<Lane>> of_rank_;  // ascending by stage
};

}  // namespace

void order_greedily(Schedule& s, const GreedyRules& rules) {
  Greedy(s, rules).run();
}

}  // namespace nns::lower
