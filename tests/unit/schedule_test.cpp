// Schedules against the closed forms of their papers (tF = tB = tW = 1, free links, m ≥ 2p).
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/schedule/pipeline.h"
#include "lower/schedule/schedule.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

namespace {

struct Idle {
  double makespan = 0;
  std::vector<double> whole, own;  // of [0, makespan]; between own first and last action
};

Idle idle_of(const Schedule& s, StageTimes times) {
  Idle idle;
  const auto lines = time_line(s, {times});
  for (const auto& line : lines) idle.makespan = std::max(idle.makespan, line.back().stop);
  for (const auto& line : lines) {
    double busy = 0;
    for (const Timed& t : line) busy += t.stop - t.start;
    idle.whole.push_back(idle.makespan - busy);
    idle.own.push_back(line.back().stop - line.front().start - busy);
  }
  return idle;
}

void check_whole(const Schedule& s, StageTimes times, double expected) {
  INFO(s.name << " p=" << s.ranks << " m=" << s.micros);
  for (double i : idle_of(s, times).whole) CHECK(i == Approx(expected));
}

}  // namespace

TEST_CASE("idle time of every stage is the closed form") {
  for (int p : {1, 2, 3, 4, 6, 8})
    for (int m : {2 * p, 3 * p, 4 * p}) {
      check_whole(make_schedule("gpipe", p, m), {}, (p - 1) * 3.0);
      check_whole(make_schedule("1f1b", p, m), {}, (p - 1) * 3.0);
      for (int v : {2, 3})
        check_whole(make_schedule("1f1b_interleaved", p, m, v), {1.0 / v, 1.0 / v, 1.0 / v},
                    (p - 1) * 3.0 / v);
      check_whole(make_schedule("zb_h1", p, m), {}, (p - 1) * 1.0);
      check_whole(make_schedule("zbv", p, m), {}, (p - 1) * 1.0);
      if (p % 2 != 0 || m % 2 != 0) continue;
      for (double i : idle_of(make_schedule("chimera", p, m), {}).whole) CHECK(i < (p - 1) * 3.0);
    }
}

TEST_CASE("zbv leaves no gap between a rank's own first and last action") {
  for (int p : {1, 2, 3, 4, 6, 8})
    for (int m : {2 * p, 3 * p, 4 * p}) {
      INFO("p=" << p << " m=" << m);
      for (double i : idle_of(make_schedule("zbv", p, m), {}).own) CHECK(i == Approx(0));
    }
}

namespace {

// The most micro-batches that each rank has between the forward and the backward of a stage; of
// `stage` alone, or of all its stages.
std::vector<int> most_held(const Schedule& s, int stage = -1) {
  std::vector<int> out;
  for (const auto& order : s.orders) {
    int held = 0, most = 0;
    for (const Action& a : order) {
      if (stage >= 0 && a.stage != stage) continue;
      held += a.kind == 'F' ? 1 : a.kind == 'B' ? -1 : 0;
      most = std::max(most, held);
    }
    CHECK(held == 0);
    out.push_back(most);
  }
  return out;
}

// Most micro-batches whose memory a rank holds until the gradients of weights are made.
std::vector<int> most_kept(const Schedule& s) {
  std::vector<int> out;
  for (const auto& order : s.orders) {
    int kept = 0, most = 0;
    for (const Action& a : order) {
      kept += a.kind == 'F' ? 1 : a.kind == 'W' ? -1 : 0;
      most = std::max(most, kept);
    }
    CHECK(kept == 0);
    out.push_back(most);
  }
  return out;
}

// Forwards of a rank before its first backward.
std::vector<int> first_forwards(const Schedule& s) {
  std::vector<int> out;
  for (const auto& order : s.orders) {
    int n = 0;
    while (order[static_cast<size_t>(n)].kind == 'F') ++n;
    out.push_back(n);
  }
  return out;
}

}  // namespace

TEST_CASE("ranks hold as many micro-batches as the papers say") {
  for (int p : {1, 2, 3, 4, 6, 8})
    for (int m : {p, 2 * p, 3 * p, 4 * p}) {
      INFO("p=" << p << " m=" << m);
      const auto expect = [&](const std::vector<int>& got, auto bound) {
        for (int r = 0; r < p; ++r) {
          INFO("rank " << r);
          CHECK(got[static_cast<size_t>(r)] == bound(r));
        }
      };
      expect(most_held(make_schedule("gpipe", p, m)), [&](int) { return m; });
      expect(most_held(make_schedule("1f1b", p, m)), [&](int r) { return std::min(p - r, m); });
      for (int v : {2, 3}) {
        // Warm-up of Narayanan 2021, and the forward that comes before each backward.
        const auto warm = [&](int r) { return std::min((v - 1) * p + 2 * (p - 1 - r) + 1, m * v); };
        const Schedule s = make_schedule("1f1b_interleaved", p, m, v);
        expect(most_held(s), warm);
        expect(first_forwards(s), warm);
      }
      // ZB-H1 and ZBV keep the activations of 1F1B's first rank: p micro-batches, 2p halves of the
      // model where a rank has two stages (Qi 2023, Qi 2024).
      expect(most_held(make_schedule("zb_h1", p, m)), [&](int r) { return std::min(p - r, m); });
      for (int held : most_held(make_schedule("zbv", p, m))) CHECK(held <= std::min(2 * p, 2 * m));
      // What gradients of weights are made of counts too, and does not grow with m.
      for (int kept : most_kept(make_schedule("zb_h1", p, m))) CHECK(kept <= std::min(2 * p, m));
      for (int kept : most_kept(make_schedule("zbv", p, m))) CHECK(kept <= std::min(4 * p, 2 * m));
      if (p % 2 != 0 || m % 2 != 0) continue;
      const Schedule s = make_schedule("chimera", p, m);
      for (int stage = 0; stage < p; ++stage)
        for (int held : most_held(s, stage)) CHECK(held <= p + 1);
    }
}

TEST_CASE("every schedule runs with few micro-batches too") {
  for (int p : {2, 4})
    for (int m : {1, 2, 3, 4, 5})
      for (const auto& name : schedule_names()) {
        INFO(name << " p=" << p << " m=" << m);
        if (name == "1f1b_interleaved" && m % p != 0) {
          CHECK_THROWS_WITH(make_schedule(name, p, m, 2),
                            Catch::Contains("expected a multiple of"));
        } else if (name == "chimera" && m % 2 != 0) {
          CHECK_THROWS_WITH(make_schedule(name, p, m), Catch::Contains("expected both even"));
        } else {
          CHECK_NOTHROW(make_schedule(name, p, m, name == "1f1b_interleaved" ? 2 : 1));
        }
      }
}

TEST_CASE("a schedule of a plan has the micro-batches that were asked for") {
  const auto graph = test::alike(4);
  for (const auto& name : schedule_names()) {
    if (name == "infer") continue;
    const int stages = name == "1f1b_interleaved" || name == "zbv" ? 4 : 2;
    plan::Builder builder(graph, 2, 2);
    const int nodes = static_cast<int>(graph->nodes.size());
    std::vector<int> first;
    std::vector<std::vector<int>> devices{{0}};
    for (int i = 1; i < stages; ++i) {
      first.push_back(i * nodes / stages);
      devices.push_back({name == "zbv" && i > 1 ? 3 - i : i % 2});
    }
    builder.stage(first, devices);
    for (int n = 0; n < nodes; ++n) builder.replicate(n, 1);
    builder.schedule(name, 4, 1);
    const plan::Plan plan = builder.finish("test");
    for (int micros : {1, 2, 3, 4}) {
      INFO(name << " " << micros);
      const Schedule s = schedule_of(plan, micros);
      CHECK(s.micros == micros);
      CHECK_NOTHROW(check(s));
    }
  }
}

TEST_CASE("a broken schedule is refused by name") {
  Schedule s = make_schedule("1f1b", 2, 2);
  SECTION("missing part") {
    s.orders[1].pop_back();
    CHECK_THROWS_WITH(check(s), Catch::Contains("B1 of stage 1 never runs"));
  }
  SECTION("twice") {
    s.orders[0].push_back({'F', 0, 0});
    CHECK_THROWS_WITH(check(s), Catch::Contains("F0 of stage 0 runs twice"));
  }
  SECTION("wrong rank") {
    s.orders[0].push_back({'F', 1, 0});
    CHECK_THROWS_WITH(check(s), Catch::Contains("which lives on rank 1"));
  }
  SECTION("waits for itself") {
    std::swap(s.orders[1][0], s.orders[1][1]);
    CHECK_THROWS_WITH(check(s), Catch::Contains("waits for ever"));
  }
  CHECK_THROWS_WITH(make_schedule("1f1bb", 2, 2), Catch::Contains("1f1b_interleaved"));
}

TEST_CASE("a part that no schedule of its kind has is refused", "[schedule]") {
  const auto refused = [](const std::string& name, const Action& part,
                          const std::string& expected) {
    Schedule s = make_schedule(name, 2, 3);
    s.orders[0].push_back(part);
    CHECK_THROWS_WITH(check(s),
                      Catch::Contains("rank 0 runs ") && Catch::Contains("expected F" + expected +
                                                                         " of stages 0 to 1, "
                                                                         "micro-batches 0 to 2"));
  };
  for (const Action& part : {Action{'X', 0, 0}, Action{'W', 0, 0}, Action{'F', -1, 0},
                             Action{'F', 2, 0}, Action{'B', 0, -1}, Action{'B', 0, 3}})
    refused("1f1b", part, " or B");
  for (const Action& part : {Action{'X', 0, 0}, Action{'W', 2, 0}, Action{'W', 0, 3}})
    refused("zb_h1", part, ", B or W");
  for (const Action& part : {Action{'B', 0, 0}, Action{'W', 0, 0}, Action{'F', 2, 0}})
    refused("infer", part, "");
}

TEST_CASE("ranks that run a stage together run its parts at one time") {
  Schedule s;
  s.name = "custom";
  s.ranks = 2;
  s.stages = 3;
  s.micros = 2;
  s.placement = {{0}, {0}, {1}};
  s.together = {{0, 1}, {0}, {1}};
  const Action f00{'F', 0, 0}, f01{'F', 0, 1};
  s.orders = {
      {f00, {'F', 1, 0}, f01, {'F', 1, 1}, {'B', 1, 0}, {'B', 0, 0}, {'B', 1, 1}, {'B', 0, 1}},
      {f00, f01, {'F', 2, 0}, {'B', 2, 0}, {'F', 2, 1}, {'B', 2, 1}, {'B', 0, 0}, {'B', 0, 1}}};
  SECTION("right") {
    check(s);
    const auto lines = time_line(s, {StageTimes{}});
    for (const Timed& t : lines[0])
      for (const Timed& other : lines[1])
        if (t.action.stage == 0 && other.action == t.action) CHECK(t.start == other.start);
    CHECK(lines[0][2].start == 2);  // F0:1 after F1:0 of rank 0
    CHECK(lines[1][2].start == 3);
  }
  SECTION("missing on one of them") {
    std::erase(s.orders[1], f01);
    CHECK_THROWS_WITH(check(s), Catch::Contains("F1 of stage 0 never runs on rank 1"));
  }
  SECTION("in another order") {
    std::swap(s.orders[1][0], s.orders[1][1]);
    CHECK_THROWS_WITH(check(s),
                      Catch::Contains("rank 0 waits for ever at F0 of stage 0, which runs "
                                      "on rank 1 too: there F1 of stage 0 comes first"));
  }
  SECTION("on a rank that is none of them") {
    s.orders[1].push_back({'F', 1, 0});
    CHECK_THROWS_WITH(check(s),
                      Catch::Contains("rank 1 runs F0 of stage 1, which lives on rank 0"));
  }
}

TEST_CASE("an order that the user wrote says F, B or W, a stage and a micro-batch") {
  // Two stages on a rank each, or both on one rank.
  const auto schedule = [](std::vector<std::vector<int>> devices, std::vector<std::string> orders) {
    const auto graph = test::perceptrons(2);
    plan::Builder b(graph, static_cast<int>(orders.size()), static_cast<int>(orders.size()));
    b.stage({6}, std::move(devices));
    for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
    b.schedule("custom", 2, 1, std::move(orders));
    return schedule_of(b.finish("hand"), 2);
  };
  const auto apart = [&](const std::string& first) {
    return schedule({{0}, {1}}, {first, "F0 B0 F1 B1"});
  };
  const Schedule right = apart("F0 F000001 B0 B1");
  CHECK(right.orders[0] == std::vector<Action>{{'F', 0, 0}, {'F', 0, 1}, {'B', 0, 0}, {'B', 0, 1}});
  CHECK(right.orders[1] == std::vector<Action>{{'F', 1, 0}, {'B', 1, 0}, {'F', 1, 1}, {'B', 1, 1}});
  CHECK_FALSE(right.split_backward);
  CHECK(apart("F0:0 F0:1 B0:0 B0:1").orders == right.orders);
  for (const char* word : {"F", "0", "X0", "f0", "F-1", "F+1", "F1x", "Fx", "F0000001",
                           "F0:", "F:0", "F0:0:0", "F0;0", "FF0"}) {
    INFO(word);
    CHECK_THROWS_WITH(
        apart(std::string(word) + " F1 B0 B1"),
        Catch::Contains(std::string("rank 0 runs '") + word + "'; expected F, B or W"));
  }
  const auto together = [&](const std::string& order) { return schedule({{0}, {0}}, {order}); };
  CHECK(together("F0:0 F1:0 B1:0 B0:0 F0:1 F1:1 B1:1 B0:1").orders[0][1] == Action{'F', 1, 0});
  CHECK_THROWS_WITH(together("F0 F1:0 B1:0 B0:0 F0:1 F1:1 B1:1 B0:1"),
                    Catch::Contains("rank 0 runs 'F0'; expected F, B or W"));
}
