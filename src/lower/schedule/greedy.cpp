#include "lower/schedule/greedy.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace nns::lower {
namespace {

class Greedy {
 public:
  Greedy(Schedule& s, const GreedyRules& rules) : s_(s), rules_(rules) {}

  void run() {
    const size_t ranks = static_cast<size_t>(s_.ranks);
    std::vector<int> free_at(ranks, 0);
    const int per_kind = s_.stages * s_.micros;
    int left = per_kind * (!s_.training ? 1 : s_.split_backward ? 3 : 2);
    for (int t = 0; left > 0; ++t) {
      NNS_CHECK(t < 100 * (per_kind + 10), "schedule '{}' does not end", s_.name);
      std::vector<std::pair<int, Action>> chosen;
      for (int r = 0; r < s_.ranks; ++r) {
        if (free_at[static_cast<size_t>(r)] > t) continue;
        Action a;
        if (choose(r, t, a)) chosen.emplace_back(r, a);
      }
      for (const auto& [r, a] : chosen) {
        const int length = a.kind == 'B' && !s_.split_backward ? 2 : 1;
        free_at[static_cast<size_t>(r)] = t + length;
        ended_[{a.kind, a.stage, a.micro}] = t + length;
        s_.orders[static_cast<size_t>(r)].push_back(a);
        --left;
      }
    }
  }

 private:
  bool done(char kind, int stage, int micro, int t) const {
    const auto at = ended_.find({kind, stage, micro});
    return at != ended_.end() && at->second <= t;
  }
  bool started(char kind, int stage, int micro) const {
    return ended_.contains({kind, stage, micro});
  }
  int holding(int rank, int stage) const {
    int n = 0;
    for (int k = 0; k < s_.micros; ++k)
      if (s_.rank_of(stage, k) == rank) n += started('F', stage, k) && !started('B', stage, k);
    return n;
  }

  bool choose(int r, int t, Action& out) const {
    bool found = false;
    std::tuple<int, int, int> best{};
    const auto offer = [&](Action a, int urgency, int order) {
      const std::tuple<int, int, int> key{urgency, order, rules_.lane_order ? a.stage : -a.stage};
      if (found && best <= key) return;
      found = true;
      best = key;
      out = a;
    };
    int total = 0;
    for (int stage = 0; stage < s_.stages; ++stage) total += holding(r, stage);
    for (int stage = 0; stage < s_.stages; ++stage) {
      const bool room =
          holding(r, stage) < rules_.in_flight(r, stage) && total < rules_.total_in_flight;
      bool forward = false, backward = false, weight = false;
      for (int k = 0; k < s_.micros; ++k) {
        if (s_.rank_of(stage, k) != r) continue;
        if (!forward && !started('F', stage, k)) {
          forward = true;  // in order of micro-batch
          if (room && (stage == 0 || done('F', stage - 1, k, t))) offer({'F', stage, k}, 1, k);
        }
        if (!s_.training) continue;
        if (!backward && !started('B', stage, k)) {
          backward = true;
          if (done('F', stage, k, t) && (stage + 1 == s_.stages || done('B', stage + 1, k, t)))
            offer({'B', stage, k}, 0, k);
        }
        if (s_.split_backward && !weight && !started('W', stage, k)) {
          weight = true;
          if (done('B', stage, k, t)) offer({'W', stage, k}, 2, k);
        }
      }
    }
    return found;
  }

  Schedule& s_;
  const GreedyRules& rules_;
  std::map<std::tuple<char, int, int>, int> ended_;
};

}  // namespace

void order_greedily(Schedule& s, const GreedyRules& rules) {
  Greedy(s, rules).run();
}

}  // namespace nns::lower
