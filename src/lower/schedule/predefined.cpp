// The predefined schedules.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "lower/schedule/greedy.h"
#include "lower/schedule/schedule.h"

namespace nns::lower {
namespace {

Schedule empty(const std::string& name, int ranks, int stages, int micros) {
  Schedule s;
  s.name = name;
  s.ranks = ranks;
  s.stages = stages;
  s.micros = micros;
  s.orders.resize(static_cast<size_t>(ranks));
  return s;
}

// Stage i on rank i mod p.
void place_round(Schedule& s) {
  for (int i = 0; i < s.stages; ++i) s.placement.push_back({i % s.ranks});
}

Schedule gpipe(int p, int m, int) {
  Schedule s = empty("gpipe", p, p, m);
  place_round(s);
  for (int r = 0; r < p; ++r) {
    auto& order = s.orders[static_cast<size_t>(r)];
    for (int k = 0; k < m; ++k) order.push_back({'F', r, k});
    for (int k = 0; k < m; ++k) order.push_back({'B', r, k});
  }
  return s;
}

Schedule infer(int p, int m, int) {
  Schedule s = empty("infer", p, p, m);
  s.training = false;
  place_round(s);
  for (int r = 0; r < p; ++r)
    for (int k = 0; k < m; ++k) s.orders[static_cast<size_t>(r)].push_back({'F', r, k});
  return s;
}

Schedule one_f_one_b(int p, int m, int) {
  Schedule s = empty("1f1b", p, p, m);
  place_round(s);
  for (int r = 0; r < p; ++r) {
    auto& order = s.orders[static_cast<size_t>(r)];
    const int warm_up = std::min(p - 1 - r, m);
    for (int k = 0; k < warm_up; ++k) order.push_back({'F', r, k});
    for (int k = warm_up; k < m; ++k) {
      order.push_back({'F', r, k});
      order.push_back({'B', r, k - warm_up});
    }
    for (int k = m - warm_up; k < m; ++k) order.push_back({'B', r, k});
  }
  return s;
}

Schedule interleaved(int p, int m, int v) {
  if (m % p != 0)
    throw Error(
        ErrorKind::plan,
        fmt::format("[lower.schedule] 1f1b_interleaved: {} micro-batches on {} pipeline ranks; "
                    "expected a multiple of {}",
                    m, p, p),
        "change the number of micro-batches, or use 1f1b");
  Schedule s = empty("1f1b_interleaved", p, p * v, m);
  place_round(s);
  const int total = m * v;
  // The i-th forward (backward) of a rank: rounds of p micro-batches, chunk after chunk.
  const auto forward = [&](int r, int i) {
    const int round = i / (p * v), chunk = i % (p * v) / p;
    return Action{'F', chunk * p + r, round * p + i % p};
  };
  const auto backward = [&](int r, int i) {
    Action a = forward(r, i);
    a.kind = 'B';
    a.stage = (v - 1 - a.stage / p) * p + r;
    return a;
  };
  for (int r = 0; r < p; ++r) {
    auto& order = s.orders[static_cast<size_t>(r)];
    const int warm_up = std::min((v - 1) * p + 2 * (p - 1 - r), total);
    for (int i = 0; i < warm_up; ++i) order.push_back(forward(r, i));
    for (int i = warm_up; i < total; ++i) {
      order.push_back(forward(r, i));
      order.push_back(backward(r, i - warm_up));
    }
    for (int i = total - warm_up; i < total; ++i) order.push_back(backward(r, i));
  }
  return s;
}

// Two pipelines in opposite directions: even micro-batches run down the ranks, odd ones up, so
// each rank holds two stages and each stage lives on two ranks.
Schedule chimera(int p, int m, int) {
  if (p % 2 != 0 || m % 2 != 0)
    fail(ErrorKind::plan,
         "[lower.schedule] chimera: {} pipeline ranks and {} micro-batches; expected both even", p,
         m);
  Schedule s = empty("chimera", p, p, m);
  for (int i = 0; i < p; ++i) s.placement.push_back({i, p - 1 - i});
  GreedyRules rules;
  rules.in_flight = [p](int, int) { return p + 1; };
  order_greedily(s, rules);
  return s;
}

Schedule zb_h1(int p, int m, int) {
  Schedule s = empty("zb_h1", p, p, m);
  s.split_backward = true;
  place_round(s);
  GreedyRules rules;
  // As many micro-batches in flight as under 1F1B; gradients of weights wait for at most p more.
  rules.in_flight = [p](int, int stage) { return p - stage; };
  rules.kept = [p](int) { return 2 * p; };
  order_greedily(s, rules);
  return s;
}

// Stages down the ranks and back up: rank r holds stages r and 2p-1-r.
Schedule zbv(int p, int m, int) {
  Schedule s = empty("zbv", p, 2 * p, m);
  s.split_backward = true;
  for (int i = 0; i < 2 * p; ++i) s.placement.push_back({i < p ? i : 2 * p - 1 - i});
  GreedyRules rules;
  rules.total_in_flight = 2 * p;
  // As zb_h1, in halves.
  rules.kept = [p](int) { return 4 * p; };
  order_greedily(s, rules);
  return s;
}

struct Row {
  const char* name;
  Schedule (*make)(int, int, int);
};
constexpr Row kSchedules[] = {
    {"gpipe", gpipe},     {"1f1b", one_f_one_b}, {"1f1b_interleaved", interleaved},
    {"chimera", chimera}, {"zb_h1", zb_h1},      {"zbv", zbv},
    {"infer", infer}};

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Row& row : kSchedules) out.emplace_back(row.name);
    return out;
  }();
  return names;
}

Schedule make_schedule(const std::string& name, int ranks, int micros, int chunks) {
  if (ranks < 1 || micros < 1 || chunks < 1)
    fail(
        ErrorKind::plan,
        "[lower.schedule] {} pipeline ranks, {} micro-batches, {} chunks; expected at least 1 each",
        ranks, micros, chunks);
  for (const Row& row : kSchedules)
    if (name == row.name) {
      Schedule s = row.make(ranks, micros, chunks);
      check(s);
      return s;
    }
  throw Error(ErrorKind::usage, fmt::format("[lower.schedule] unknown schedule: '{}'", name),
              fmt::format("the schedules are {}", [] {
                std::string all;
                for (const auto& n : schedule_names()) all += (all.empty() ? "" : ", ") + n;
                return all;
              }()));
}

}  // namespace nns::lower
