#include "solve/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "base/error.h"

namespace nns::solve {
namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

// A partial plan of a segment.
struct Label {
  double seconds = 0;
  int64_t resting = 0, saved = 0;
  int before = -1;  // label that it goes on from
  uint8_t candidate = 0;

  int64_t bytes() const { return resting + saved; }
};

// The frontiers between segments, each known by a number.
class Frontiers {
 public:
  // `entries`: the values that it tells of.
  int number(const std::string& key, size_t entries) {
    const auto [place, fresh] = numbers_.try_emplace(key, static_cast<int>(all_.size()));
    if (fresh) all_.push_back({&place->first, Frontier::of(key, entries)});
    return place->second;
  }
  const std::string& key(int number) const { return *all_[at(number)].key; }
  const Frontier& of(int number) const { return all_[at(number)].frontier; }

 private:
  struct Known {
    const std::string* key;
    Frontier frontier;
  };
  std::unordered_map<std::string, int> numbers_;  // keys keep their places
  std::vector<Known> all_;
};

// What a segment can make of a frontier.
struct Exit {
  int frontier = 0;  // in Frontiers
  double seconds = 0;
  int64_t resting = 0, saved = 0;
  std::vector<uint8_t> candidates;
};

// Plans by frontier, in the order in which frontiers were met.
template <class Key, class Item>
class Level {
 public:
  // Adds an item unless one that is there is as fast and as small; drops those that it beats.
  void add(Key key, Item item, bool memory) {
    const auto [place, fresh] = index_.try_emplace(std::move(key), rows_.size());
    if (fresh) rows_.push_back({&place->first, {}});
    std::vector<Item>& items = rows_[place->second].items;
    const auto beats = [&](const Item& a, const Item& b) {
      return a.seconds <= b.seconds && (!memory || a.bytes() <= b.bytes());
    };
    for (const Item& known : items)
      if (beats(known, item)) return;
    std::erase_if(items, [&](const Item& known) { return beats(item, known); });
    items.push_back(std::move(item));
  }

  struct Row {
    const Key* key;
    std::vector<Item> items;
  };
  std::vector<Row>& rows() { return rows_; }
  size_t size() const {
    size_t n = 0;
    for (const Row& row : rows_) n += row.items.size();
    return n;
  }

 private:
  std::unordered_map<Key, size_t> index_;  // keys keep their places
  std::vector<Row> rows_;
};

constexpr double kNever = std::numeric_limits<double>::infinity();

class Search {
 public:
  Search(const Space& space, const Limits& limits)
      : space_(space),
        limits_(limits),
        memory_(limits.memory.has_value()),
        mover_(space, memory_ || limits.price * limits.in_flight > 0, limits.zero),
        live_(space.live()) {}

  // From the fastest on.
  std::vector<Found> run() {
    std::vector<State>& states = states_;
    const Space::Rest unread = space_.unread(limits_.zero);
    states = {{unread.seconds, memory_ ? unread.bytes : 0, 0, -1, nullptr}};
    std::vector<std::pair<int, int>> now{{frontiers_.number(Frontier{}.key(), 0), 0}};
    const auto& segments = space_.segments();
    for (size_t s = 0; s < segments.size(); ++s) {
      Level<int, State> level;
      for (const auto& [frontier, index] : now) {
        const State from = states[at(index)];
        for (const Exit& exit : exits(s, frontier)) {
          State to{from.seconds + exit.seconds, from.resting + exit.resting,
                   from.saved + exit.saved, index, &exit};
          if (memory_ && to.bytes() > *limits_.memory) continue;
          level.add(exit.frontier, to, memory_);
        }
      }
      // Segments that are equal have the same values alive in front of them.
      const int next = s + 1 < segments.size() ? space_.segment_ids()[s + 1] : -1;
      const auto& live = live_[space_.segment_end(s)];
      prune(
          level, [&](int number) -> const Frontier& { return frontiers_.of(number); },
          [&](int a, const Frontier& of_a, int b, const Frontier& of_b, double most) {
            const auto [place, fresh] = excess_.try_emplace({next, a, b});
            if (fresh) place->second = mover_.excess(of_a, of_b, live, kNever);
            const auto& known = place->second;
            return known && known->seconds <= most ? known : std::nullopt;
          });
      if (given_up()) return {};
      now.clear();
      for (auto& row : level.rows())
        for (State& state : row.items) {
          now.emplace_back(*row.key, static_cast<int>(states.size()));
          states.push_back(state);
        }
      if (now.empty()) return {};
    }
    std::stable_sort(now.begin(), now.end(), [&](const auto& a, const auto& b) {
      return states[at(a.second)].seconds < states[at(b.second)].seconds;
    });
    std::vector<Found> out;
    for (const auto& [key, index] : now) out.push_back(found(index));
    return out;
  }

 private:
  struct State {
    double seconds = 0;
    int64_t resting = 0, saved = 0;
    int before = -1;
    const Exit* exit = nullptr;
    int64_t bytes() const { return resting + saved; }
  };

  Found found(int last) const {
    const State& end = states_[at(last)];
    Found found;
    found.seconds = end.seconds;
    found.resting = end.resting;
    found.saved = end.saved;
    found.exact = !thinned_;
    found.labels = labels_;
    found.frontiers = most_frontiers_;
    for (int i = last; states_[at(i)].exit != nullptr; i = states_[at(i)].before) {
      const auto& chosen = states_[at(i)].exit->candidates;
      found.candidates.insert(found.candidates.end(), chosen.rbegin(), chosen.rend());
    }
    std::reverse(found.candidates.begin(), found.candidates.end());
    return found;
  }

  const std::vector<Exit>& exits(size_t segment, int enter) {
    auto& known = exits_[{space_.segment_ids()[segment], enter}];
    if (!known)
      known = std::make_unique<std::vector<Exit>>(
          explore(space_.segments()[segment], space_.segment_end(segment), frontiers_.key(enter)));
    return *known;
  }

  std::vector<Exit> explore(size_t first, size_t last, const std::string& enter) {
    std::vector<Label> labels{{}};
    std::vector<std::pair<std::string, int>> now{{enter, 0}};
    for (size_t i = first; i < last; ++i) {
      Level<std::string, Label> next;
      const int number = space_.sequence()[i];
      const Step& step = space_.steps()[at(number)];
      const size_t candidates = step.kind < 0 ? 1 : space_.kinds()[at(step.kind)].candidates.size();
      const uint32_t homes = mover_.homes(number);
      for (const auto& [key, index] : now) {
        const Frontier from = Frontier::of(key, live_[i].size());
        for (size_t c = 0; c < candidates; ++c)
          for (uint32_t h = 0; h < homes; ++h) {
            Frontier to = from;
            Added added;
            ++labels_;
            if (!mover_.move(number, c, h, to, added)) continue;
            const Label& before = labels[at(index)];
            const double bytes = static_cast<double>(added.resting) +
                                 limits_.in_flight * static_cast<double>(added.saved);
            const Label label{before.seconds + added.seconds + limits_.price * bytes,
                              before.resting + added.resting, before.saved + added.saved, index,
                              static_cast<uint8_t>(c)};
            if (memory_ && label.bytes() > *limits_.memory) continue;
            next.add(to.key(), label, memory_);
          }
      }
      const auto& live = live_[i + 1];
      prune(
          next, [&](const std::string& key) { return Frontier::of(key, live.size()); },
          [&](const std::string&, const Frontier& a, const std::string&, const Frontier& b,
              double most) { return mover_.excess(a, b, live, most); });
      if (given_up()) return {};
      now.clear();
      for (auto& row : next.rows())
        for (const Label& label : row.items) {
          now.emplace_back(*row.key, static_cast<int>(labels.size()));
          labels.push_back(label);
        }
    }
    std::vector<Exit> out;
    for (const auto& [key, index] : now) {
      Exit exit{frontiers_.number(key, live_[last].size()), labels[at(index)].seconds,
                labels[at(index)].resting, labels[at(index)].saved,
                std::vector<uint8_t>(last - first)};
      int label = index;
      for (size_t i = last - first; i-- > 0; label = labels[at(label)].before)
        exit.candidates[i] = labels[at(label)].candidate;
      out.push_back(std::move(exit));
    }
    return out;
  }

  bool given_up() const { return thinned_ && limits_.exact; }

  // Drops what another frontier, carried on in the same way, beats in any case; where there is too
  // much to look at, all but the fastest and the smallest.
  // `of`: the frontier of a key; `excess`: as Mover's, of two keys and their frontiers.
  template <class Key, class Item, class Of, class Excess>
  void prune(Level<Key, Item>& level, Of of, Excess excess) {
    auto& rows = level.rows();
    most_frontiers_ = std::max(most_frontiers_, rows.size());
    drop_beaten(rows, of, excess);
    if (!thinned_ && labels_ < limits_.labels) return;
    if (level.size() <= limits_.beam) return;
    thinned_ = true;
    std::vector<std::pair<double, double>> order;  // seconds, bytes
    for (const auto& row : rows)
      for (const Item& item : row.items)
        order.emplace_back(item.seconds, static_cast<double>(item.bytes()));
    auto times = order;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(limits_.beam / 2),
                     times.end());
    const double slowest = times[limits_.beam / 2].first;
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
    const double largest = order[limits_.beam / 2].second;
    for (auto& row : rows)
      std::erase_if(row.items, [&](const Item& item) {
        return item.seconds > slowest && static_cast<double>(item.bytes()) > largest;
      });
    std::erase_if(rows, [](const auto& row) { return row.items.empty(); });
  }

  // Judges are the frontiers with the fastest plans.
  template <class Rows, class Of, class Excess>
  void drop_beaten(Rows& rows, Of of, Excess excess_of) {
    constexpr size_t kJudges = 24;
    constexpr double kRounding = 1e-12;
    if (rows.size() < 2) return;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < rows.size(); ++i) {
      double fastest = rows[i].items[0].seconds;
      for (const auto& item : rows[i].items) fastest = std::min(fastest, item.seconds);
      order.emplace_back(fastest, i);
    }
    std::sort(order.begin(), order.end());
    struct Judge {
      size_t row;
      double fastest;
      Frontier frontier;
    };
    std::vector<Judge> judges;
    for (const auto& [fastest, i] : order) {
      const Frontier& frontier = of(*rows[i].key);
      auto& items = rows[i].items;
      for (size_t j = 0; j < judges.size() && !items.empty(); ++j) {
        double slowest = items[0].seconds;
        for (const auto& mine : items) slowest = std::max(slowest, mine.seconds);
        const double most = slowest * (1 + 2 * kRounding) - judges[j].fastest;
        const auto excess =
            excess_of(*rows[judges[j].row].key, judges[j].frontier, *rows[i].key, frontier, most);
        if (!excess) continue;
        const double seconds = excess->seconds + limits_.price * limits_.in_flight *
                                                     static_cast<double>(excess->bytes);
        const auto& theirs = rows[judges[j].row].items;
        std::erase_if(items, [&](const auto& mine) {
          return std::any_of(theirs.begin(), theirs.end(), [&](const auto& other) {
            return other.seconds + seconds <= mine.seconds * (1 + kRounding) &&
                   (!memory_ || other.bytes() + excess->bytes <= mine.bytes());
          });
        });
      }
      if (!items.empty() && judges.size() < kJudges) judges.push_back({i, fastest, frontier});
    }
    std::erase_if(rows, [](const auto& row) { return row.items.empty(); });
  }

  const Space& space_;
  Limits limits_;
  bool memory_;
  Mover mover_;
  std::vector<State> states_;
  const std::vector<std::vector<Live>>& live_;
  Frontiers frontiers_;
  // By number of the segment and frontier that enters.
  std::map<std::pair<int, int>, std::unique_ptr<std::vector<Exit>>> exits_;
  // By number of the segment that follows, and two frontiers before it.
  std::map<std::tuple<int, int, int>, std::optional<Mover::Excess>> excess_;
  size_t labels_ = 0, most_frontiers_ = 0;
  bool thinned_ = false;
};

}  // namespace

std::optional<Found> search(const Space& space, const Limits& limits) {
  auto all = Search(space, limits).run();
  if (all.empty()) return std::nullopt;
  return std::move(all[0]);
}

std::vector<Found> search_all(const Space& space, const Limits& limits) {
  return Search(space, limits).run();
}

namespace {

// What choices make of a frontier in one segment.
struct Path {
  std::vector<Added> steps;
  std::vector<Frontier> before;
  Frontier exit;
};

// Homes of weights of several uses are choices too: of those that enter here each may go through.
std::vector<Path> paths_of(const Space& space, const Mover& mover, size_t segment,
                           const std::vector<uint8_t>& candidates, const Frontier& enter) {
  std::vector<Path> paths{{{}, {}, enter}};
  for (size_t i = space.segments()[segment]; i < space.segment_end(segment); ++i) {
    const int number = space.sequence()[i];
    const uint32_t homes = mover.homes(number);
    std::vector<Path> next;
    for (Path& path : paths)
      for (uint32_t h = 0; h < homes; ++h) {
        Path longer;
        Frontier to = path.exit;
        Added added;
        if (!mover.move(number, candidates[i], h, to, added)) continue;
        if (h + 1 == homes)
          longer = std::move(path);
        else
          longer = path;
        longer.before.push_back(std::move(longer.exit));
        longer.exit = std::move(to);
        longer.steps.push_back(added);
        next.push_back(std::move(longer));
      }
    paths = std::move(next);
  }
  return paths;
}

}  // namespace

std::optional<Trace> trace(const Space& space, const std::vector<uint8_t>& candidates, int zero) {
  struct State {
    const Path* path = nullptr;
    size_t before = 0;
  };
  const Mover mover(space, true, zero);
  const Path start;
  // By number of the segment, its choices and the frontier that enters.
  std::map<std::tuple<int, std::string, std::string>, std::vector<Path>> known;
  std::vector<std::vector<State>> levels{{{&start, 0}}};
  for (size_t s = 0; s < space.segments().size(); ++s) {
    const std::string chosen(
        candidates.begin() + static_cast<std::ptrdiff_t>(space.segments()[s]),
        candidates.begin() + static_cast<std::ptrdiff_t>(space.segment_end(s)));
    std::vector<State> next;
    for (size_t k = 0; k < levels.back().size(); ++k) {
      const Frontier& enter = levels.back()[k].path->exit;
      const auto [place, fresh] = known.try_emplace({space.segment_ids()[s], chosen, enter.key()});
      if (fresh) place->second = paths_of(space, mover, s, candidates, enter);
      for (const Path& path : place->second) next.push_back({&path, k});
    }
    levels.push_back(std::move(next));
  }
  NNS_CHECK(levels.back().size() <= 1, "{} homes of one plan", levels.back().size());
  if (levels.back().empty()) return std::nullopt;
  std::vector<const Path*> taken;
  size_t at = 0;
  for (size_t i = levels.size() - 1; i > 0; --i) {
    taken.push_back(levels[i][at].path);
    at = levels[i][at].before;
  }
  Trace out;
  for (auto path = taken.rbegin(); path != taken.rend(); ++path) {
    out.steps.insert(out.steps.end(), (*path)->steps.begin(), (*path)->steps.end());
    out.before.insert(out.before.end(), (*path)->before.begin(), (*path)->before.end());
  }
  const Space::Rest unread = space.unread(zero);
  out.steps[0].resting += unread.bytes;
  out.steps[0].seconds += unread.seconds;
  return out;
}

std::optional<Added> price(const Space& space, const std::vector<uint8_t>& candidates, int zero) {
  const auto traced = trace(space, candidates, zero);
  if (!traced) return std::nullopt;
  Added sum;
  for (const Added& step : traced->steps) {
    sum.seconds += step.seconds;
    sum.resting += step.resting;
    sum.saved += step.saved;
    sum.micro += step.micro;
    sum.forward += step.forward;
    sum.sent += step.sent;
    sum.update += step.update;
  }
  return sum;
}

int64_t least_resting(const Space& space, int zero) {
  int64_t sum = space.unread(zero).bytes;
  for (size_t i = 0; i < space.sequence().size(); ++i) {
    const Step& step = space.steps()[at(space.sequence()[i])];
    const auto least = [&](int leaf) {
      int64_t bytes = space.rest(leaf, kWhole, zero).bytes;
      for (const Candidate& c : space.kinds()[at(step.kind)].candidates)
        for (size_t k = 0; k < c.inputs.size(); ++k)
          if (step.lives[k].leaf == leaf && c.inputs[k] != kAddend)
            bytes = std::min(bytes, space.rest(leaf, c.inputs[k], zero).bytes);
      return bytes;
    };
    if (step.kind < 0) continue;
    for (const Step::Operand& o : step.operands)
      if (o.at < 0) sum += least(o.leaf);
    for (const Live& live : step.enter)
      if (live.leaf >= 0) sum += least(live.leaf);
  }
  return sum;
}

}  // namespace nns::solve
