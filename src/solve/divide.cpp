// Division of a chain of steps into the stages of a pipeline.
#include <algorithm>
#include <limits>

#include "solve/arrange.h"

namespace nns::solve {

using lower::Schedule;

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

// Most micro-batches that a stage holds between forward and backward.
std::vector<int> in_flight(const Schedule& schedule) {
  std::vector<int> most(at(schedule.stages), 0);
  for (const auto& order : schedule.orders) {
    std::vector<int> now(at(schedule.stages), 0);
    for (const lower::Action& action : order) {
      if (action.kind == 'F') ++now[at(action.stage)];
      if (action.kind == 'B') --now[at(action.stage)];
      most[at(action.stage)] = std::max(most[at(action.stage)], now[at(action.stage)]);
    }
  }
  return most;
}

// Seconds of a micro-batch in a stage without messages.
double micro(const Table::Stage& stage) {
  return stage.forward + stage.backward;
}

constexpr double kNever = std::numeric_limits<double>::max();

// The best division by dynamic programming over stages and places.
class Division {
 public:
  // `at_place`: where stages may begin, with begin and end of the sequence. No stage of a division
  // that counts is longer than `bound`.
  Division(const Table& table, const Schedule& schedule, const std::vector<size_t>& at_place,
           std::optional<int64_t> memory, double bound)
      : at_place_(at_place),
        stages_(at(schedule.stages)),
        bound_(bound),
        in_flight_(in_flight(schedule)),
        most_(stages_, kNever),
        best_(stages_, std::vector<Cost>(at_place.size(), {kNever, 0})),
        from_(stages_, std::vector<size_t>(at_place.size(), 0)) {
    for (size_t place : at_place) {
      const Table::Stage before = table.stage(0, place);
      micro_.push_back(micro(before));
      resting_.push_back(static_cast<double>(before.resting));
      saved_.push_back(static_cast<double>(before.saved));
      sent_.push_back(place > 0 && place < table.size() ? table.message(place) / 2 : 0);
    }
    if (!memory) return;
    std::vector<int> of_rank(at(schedule.ranks), 0);  // stages that share its memory
    for (size_t s = 0; s < stages_; ++s) ++of_rank[at(schedule.rank_of(static_cast<int>(s), 0))];
    for (size_t s = 0; s < stages_; ++s)
      most_[s] =
          static_cast<double>(*memory) / of_rank[at(schedule.rank_of(static_cast<int>(s), 0))];
  }

  // Nothing where no division keeps the limits.
  std::optional<std::vector<size_t>> run() {
    const size_t n = at_place_.size();
    for (size_t s = 0; s < stages_; ++s)
      for (size_t i = s + 1; i < n; ++i)
        if ((s + 1 == stages_) == (i + 1 == n) && may_end(s, i)) find(s, i);
    if (longest() == kNever) return std::nullopt;
    std::vector<size_t> begins;
    size_t i = n - 1;
    for (size_t s = stages_ - 1; s > 0; --s) {
      i = from_[s][i];
      begins.push_back(at_place_[i]);
    }
    std::reverse(begins.begin(), begins.end());
    return begins;
  }

  double longest() const { return best_.back().back().first; }

 private:
  // The longest stage; with equal ones, the fewest seconds of messages.
  using Cost = std::pair<double, double>;

  // Whether the stages before a place and those behind it can be short enough.
  bool may_end(size_t s, size_t i) const {
    constexpr double kRounding = 1 + 1e-9;
    if (bound_ == kNever) return true;
    return micro_[i] <= static_cast<double>(s + 1) * bound_ * kRounding &&
           micro_.back() - micro_[i] <= static_cast<double>(stages_ - s - 1) * bound_ * kRounding;
  }

  // Stage s ends at place i.
  void find(size_t s, size_t i) {
    Cost& best = best_[s][i];
    for (size_t j = s == 0 ? 1 : i; j-- > (s == 0 ? 0 : s);) {
      // Stages that begin earlier are longer and hold more.
      const double length = micro_[i] - micro_[j];
      if (length > best.first || length > bound_) break;
      if (resting_[i] - resting_[j] + in_flight_[s] * (saved_[i] - saved_[j]) > most_[s]) break;
      const Cost before = s == 0 ? Cost{0, 0} : best_[s - 1][j];
      if (before.first == kNever) continue;
      const double sent = sent_[j] + sent_[i];
      const Cost cost{std::max(before.first, length + sent), before.second + sent};
      if (cost < best) {
        best = cost;
        from_[s][i] = j;
      }
    }
  }

  const std::vector<size_t>& at_place_;
  const size_t stages_;
  const double bound_;
  const std::vector<int> in_flight_;
  std::vector<double> most_;                            // bytes that a stage may hold
  std::vector<double> micro_, resting_, saved_, sent_;  // by place
  std::vector<std::vector<Cost>> best_;                 // by stage and the place where it ends
  std::vector<std::vector<size_t>> from_;               // where it begins then
};

}  // namespace

std::optional<std::vector<size_t>> divide(const Table& table, const Schedule& schedule,
                                          const std::vector<size_t>& places,
                                          std::optional<int64_t> memory) {
  const size_t stages = at(schedule.stages);
  if (places.size() + 1 < stages) return std::nullopt;
  const auto with_ends = [&](const std::vector<size_t>& inside) {
    std::vector<size_t> out{0};
    out.insert(out.end(), inside.begin(), inside.end());
    out.push_back(table.size());
    return out;
  };
  // A division at places where little passes is found soon, and no stage of a better one is longer.
  double bound = kNever;
  const std::vector<size_t> cheap = table.cheapest(places, stages);
  if (cheap.size() + 1 >= stages && cheap.size() < places.size()) {
    const std::vector<size_t> at_place = with_ends(cheap);
    Division coarse(table, schedule, at_place, memory, kNever);
    if (coarse.run()) bound = coarse.longest();
  }
  const std::vector<size_t> at_place = with_ends(places);
  return Division(table, schedule, at_place, memory, bound).run();
}

}  // namespace nns::solve
