// Whole solutions of the planner: limits of memory, shards, pipelines, recomputation, constraints,
// and what it refuses.
#include <catch2/catch.hpp>
#include <tuple>

#include "base/error.h"
#include "lower/fold.h"
#include "solve/solve.h"
#include "support/graph_text.h"
#include "support/models.h"
#include "support/solving.h"

using namespace nns;
using namespace nns::solve;
using test::problem_of;

TEST_CASE("a limit of memory holds for the peak", "[solve]") {
  const auto problem = problem_of(test::transformer(3), 2);
  const Solution free = solve::solve(problem, std::nullopt);
  CHECK(free.exact);
  CHECK_FALSE(free.bound);
  CHECK(free.searched == Approx(free.cost.seconds).epsilon(1e-9));
  const Solution same = solve::solve(problem, free.cost.total);
  CHECK(plan::to_json(same.plan) == plan::to_json(free.plan));
  const Solution less = solve::solve(problem, free.cost.total - 1);
  CHECK(less.bound);
  CHECK(less.cost.total < free.cost.total);
  CHECK(less.cost.seconds >= free.cost.seconds);
  try {
    solve::solve(problem, 1000);
    FAIL("1000 bytes were enough");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::plan);
    CHECK(
        e.message().starts_with("[solve.memory] no plan of 2 device(s) keeps 1.0 KiB a device; "
                                "weights, gradients and optimizer state take "));
  }
}

TEST_CASE("weights rest in shards where nothing else fits", "[solve]") {
  const auto problem = problem_of(test::alike(4), 1, 8);
  const Solution whole = solve::solve(problem, std::nullopt, {.zero = plan::Zero::none});
  CHECK(whole.plan.zero.level == plan::Zero::none);
  const int64_t limit = whole.cost.total * 3 / 4;
  const Solution less = solve::solve(problem, limit);
  CHECK(less.plan.zero.level >= plan::Zero::slots);
  CHECK(less.cost.total <= limit);
  for (const int level : {plan::Zero::slots, plan::Zero::gradients, plan::Zero::weights}) {
    const Solution given = solve::solve(problem, limit, {.zero = level});
    CHECK(given.plan.zero.level == level);
    CHECK(less.cost.seconds <= given.cost.seconds);
  }
}

TEST_CASE("stages of a pipeline are as long as can be, and within the limit", "[solve]") {
  auto problem = problem_of(test::transformer(6), 4);
  problem.settings.micro_batches = 8;
  for (const char* schedule : {"1f1b", "1f1b_interleaved", "zb_h1"}) {
    INFO(schedule);
    const Solution found =
        solve::solve(problem, std::nullopt, {.pipeline = 2, .schedule = schedule});
    CHECK(found.plan.schedule == schedule);
    CHECK(found.plan.stages == (found.plan.schedule == "1f1b_interleaved" ? 4 : 2));
    for (const auto& devices : found.plan.stage_devices) CHECK(devices.size() == 2);
  }
  // Of all numbers of stages the best one is taken.
  const Solution any = solve::solve(problem, std::nullopt, {.pipeline = 0});
  for (const int ranks : {1, 2, 4})
    CHECK(any.cost.seconds <=
          solve::solve(problem, std::nullopt, {.pipeline = ranks}).cost.seconds * 1.02);
  const Solution less = solve::solve(problem, any.cost.total * 9 / 10, {.pipeline = 0});
  CHECK(less.cost.total <= any.cost.total * 9 / 10);
}

TEST_CASE("the division of a chain is the best of all divisions", "[solve]") {
  auto problem = problem_of(test::transformer(3), 3);
  problem.pipeline = 3;
  problem.settings.micro_batches = 6;
  const Space space(problem);
  const auto found = search(space, {});
  const auto traced = trace(space, found->candidates);
  REQUIRE(traced);
  const Table table(space, found->candidates, *traced);
  const auto schedule = lower::make_schedule("1f1b", 3, 6);
  const auto places = table.places({});
  const auto begins = divide(table, schedule, places, std::nullopt);
  REQUIRE(begins);
  const auto longest = [&](size_t x, size_t y) {
    const auto time = [&](size_t begin, size_t end) {
      const Table::Stage stage = table.stage(begin, end);
      double t = stage.forward + stage.backward;
      if (begin > 0) t += table.message(begin) / 2;
      if (end < table.size()) t += table.message(end) / 2;
      return t;
    };
    return std::max({time(0, x), time(x, y), time(y, table.size())});
  };
  for (size_t x : places)
    for (size_t y : places)
      if (x < y) CHECK(longest((*begins)[0], (*begins)[1]) <= longest(x, y) * (1 + 1e-12));
}

TEST_CASE("blocks run again where the limit binds", "[solve]") {
  const auto problem = problem_of(test::transformer(4), 1);
  const Solution free = solve::solve(problem, std::nullopt);
  bool any = false;
  for (int percent = 95; percent > 50 && !any; percent -= 5) {
    try {
      const Solution less = solve::solve(problem, free.cost.total * percent / 100);
      CHECK(less.cost.total <= free.cost.total * percent / 100);
      for (const plan::OpPlan& op : less.plan.ops) any = any || op.recompute >= 0;
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::plan);
      break;
    }
  }
  CHECK(any);
}

TEST_CASE("constraints take out cuts", "[solve]") {
  auto problem = problem_of(test::transformer(2), 2);
  const auto refused = [&](Constraint constraint, const std::string& start) {
    problem.constraints = {std::move(constraint)};
    try {
      solve::solve(problem, std::nullopt);
      FAIL("not refused");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::usage);
      CHECK(e.message().starts_with(start));
    }
  };
  refused({"aten::lstm", ""},
          "[solve.constraint] the constraint of 'aten::lstm' in '*' matches no");
  refused({"aten::linear", "h.0", {{7, 0}}, false},
          "[solve.constraint] the constraint of 'aten::linear' in 'h.0' leaves no way to run h.0");
  problem.constraints = {{"", "h.1"}, {"aten::linear", "h.0", {{0, 0}}, false}};
  const Solution found = solve::solve(problem, std::nullopt);
  bool cut = false;
  for (const plan::OpPlan& op : found.plan.ops) {
    if (op.key.module.starts_with("h.1")) CHECK(op.cuts.at(0).input == -1);
    if (!op.key.module.starts_with("h.0") || op.key.op != "aten::linear") continue;
    cut = true;
    CHECK(op.cuts.at(0).input == 0);
    CHECK(op.cuts.at(0).dim == 0);
  }
  CHECK(cut);
}

TEST_CASE("constraints are read with their places", "[solve]") {
  const auto read = [](const std::string& text) { return parse_constraints(text, "c.yaml"); };
  const auto all = read(
      "- name: torch.nn.functional.linear\n  parent_module: h.0\n"
      "  allowed_partition_dims: ['0,0', '1, 0']\n  replica_allowed: false\n- parent_module: h.\n");
  REQUIRE(all.size() == 2);
  CHECK(all[0].allowed == std::vector<std::pair<int, int>>{{0, 0}, {1, 0}});
  CHECK_FALSE(all[0].replica);
  CHECK(all[1].replica);
  const auto graph = test::transformer(2);
  const auto of = match(all, *graph);
  for (const graph::Node& node : graph->nodes) {
    const int want = !node.module.starts_with("h.")                                ? -1
                     : node.op == "aten::linear" && node.module.starts_with("h.0") ? 0
                                                                                   : 1;
    CHECK(of[static_cast<size_t>(node.id)] == want);
  }
  const auto refused = [&](const std::string& text, const std::string& message) {
    try {
      read(text);
      FAIL("not refused: " << text);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::usage);
      CHECK(e.message() == "[solve.constraint] c.yaml:1:" + message);
    }
  };
  refused("name: linear", "1: 'the file' is a table; expected a list of constraints");
  refused("- linear",
          "3: 'a constraint' is the text 'linear'; expected a table with name, "
          "parent_module, allowed_partition_dims, replica_allowed");
  refused("- nam: linear",
          "3: no key 'nam'; expected name, parent_module, "
          "allowed_partition_dims, replica_allowed");
  for (const char* bad : {"['0']", "['0,x']", "['0,-1']", "['0,0,']", "[3000000000,0]", "['']"})
    CHECK_THROWS_AS(read(std::string("- allowed_partition_dims: ") + bad), Error);
  CHECK_THROWS_AS(read("- replica_allowed: 3"), Error);
  CHECK_THROWS_AS(read("- name: [linear]"), Error);
}

TEST_CASE("a report tells what was chosen and what was not", "[solve]") {
  const auto problem = problem_of(test::transformer(3), 2, 2);
  const Solution found = solve::solve(problem, std::nullopt, {.report = true});
  const Report& report = found.report;
  CHECK(report.statistics.simulated == report.tried.size());
  CHECK(std::count_if(report.tried.begin(), report.tried.end(),
                      [](const Tried& t) { return t.chosen; }) == 1);
  for (const Tried& t : report.tried)
    if (!t.chosen) CHECK(t.seconds >= found.cost.seconds);
  CHECK(report.choices.size() == report.statistics.calls);
  if (found.plan.zero.level == plan::Zero::none) {
    double sum = 0;
    for (const Choice& c : report.choices) {
      sum += problem.settings.micro_batches * c.micro + c.once;
      for (const Other& o : c.others) CHECK(o.more >= -1e-9 * found.cost.seconds);
    }
    CHECK(sum <= found.cost.seconds * (1 + 1e-9));
  }
  CHECK(to_json(report).find("\"choices\"") != std::string::npos);
}

TEST_CASE("more memory never takes longer", "[solve]") {
  const std::vector<std::tuple<const char*, test::GraphPtr, int, int>> models = {
      {"transformer", test::transformer(6), 2, 2},
      {"alike", test::alike(8), 1, 4},
      {"perceptrons", test::perceptrons(6), 4, 1}};
  for (const auto& [name, graph, devices, units] : models) {
    const auto problem = problem_of(graph, devices, units);
    Planner planner(problem, {.pipeline = 0});
    const Solution free = planner.within(std::nullopt);
    double before = 1e300;
    int found = 0;
    for (int step = 1; step <= 12; ++step) {
      const int64_t limit = free.cost.total * (52 + 4 * step) / 100;
      INFO(name << ", " << limit << " bytes of " << free.cost.total);
      try {
        const Solution less = planner.within(limit);
        CHECK(less.cost.total <= limit);
        CHECK(less.cost.seconds <= before * (1 + 1e-12));
        CHECK(less.cost.seconds >= free.cost.seconds * (1 - 1e-12));
        before = less.cost.seconds;
        ++found;
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::plan);
        CHECK(found == 0);
      }
    }
    CHECK(found >= 6);
  }
}

TEST_CASE("the smallest limit that is said to be enough is", "[solve]") {
  const auto problem = problem_of(test::transformer(3), 2);
  try {
    solve::solve(problem, 1000);
    FAIL("1000 bytes were enough");
  } catch (const Error& e) {
    const std::string& text = e.hint();
    const std::string mark = "pas_config.mem_constraint: ";
    const size_t place = text.find(mark);
    REQUIRE(place != std::string::npos);
    const double gib = std::stod(text.substr(place + mark.size()));
    CHECK_NOTHROW(solve::solve(problem, static_cast<int64_t>(gib * (1 << 30))));
  }
}

TEST_CASE("a plan that holds little is found, else no proof is claimed", "[solve]") {
  // Cuts for which neither what rests nor what is kept is small alone.
  const auto problem = problem_of(test::transformer(3), 4, 2);
  const Space space(problem);
  const auto found = search(space, {.price = 1, .in_flight = 1});
  REQUIRE(found);
  Arrangement arrangement{found->candidates};
  arrangement.zero = plan::Zero::weights;
  arrangement.recompute = 1;
  lower::Options options;
  options.set_bytes = problem.settings.bucket_bytes;
  const int64_t bytes =
      lower::Fold(problem.graph)
          .simulate(plan_of(space, arrangement, "test"), options, problem.on, problem.settings)
          .total;
  CHECK(solve::solve(problem, bytes).cost.total <= bytes);
  try {
    solve::solve(problem, least_resting(space, plan::Zero::weights) + 8);
    FAIL("there is no room for activations");
  } catch (const Error& e) {
    CHECK(e.message().starts_with("[solve.memory] no plan of 4 device(s) was found that keeps "));
  }
}

TEST_CASE("an estimate holds no more than the simulator finds", "[solve]") {
  int near = 0, all = 0;
  for (const auto& graph : {test::transformer(4), test::alike(6), test::perceptrons(4),
                            test::linears(), test::convolutions(), test::oddities()})
    for (const int ranks : {1, 2})
      for (const int zero : {plan::Zero::none, plan::Zero::weights})
        for (const char* schedule : {"1f1b", "zb_h1"}) {
          auto problem = problem_of(graph, 2 * ranks, 2);
          problem.pipeline = ranks;
          const Space space(problem);
          const auto found = search(space, {.zero = zero});
          const auto traced = trace(space, found->candidates, zero);
          const Table table(space, found->candidates, *traced);
          const auto order = lower::make_schedule(schedule, ranks, problem.settings.micro_batches);
          Arrangement arrangement{found->candidates, {}, schedule, 1, zero};
          if (ranks == 1 && order.split_backward) continue;
          if (ranks > 1) arrangement.begins = *divide(table, order, table.places({}), std::nullopt);
          for (const double part : {0.0, 0.5, 1.0}) {
            arrangement.recompute = part;
            lower::Options options;
            options.set_bytes = problem.settings.bucket_bytes;
            const int64_t bytes = lower::Fold(graph)
                                      .simulate(plan_of(space, arrangement, "test"), options,
                                                problem.on, problem.settings)
                                      .total;
            const int64_t estimated = estimate(table, arrangement, order).bytes;
            INFO(describe(space, arrangement) << " of " << graph->name);
            CHECK(estimated <= bytes);
            near += 10 * estimated >= 8 * bytes;
            ++all;
          }
        }
  CHECK(2 * near > all);
}

TEST_CASE("the smallest models have plans", "[solve]") {
  graph::Graph one;  // an operator, no weight
  one.name = "One";
  one.values.push_back({0, {{8, 8}, DType::f64}, graph::Role::input, false, "x", -1, {}});
  one.inputs = {0};
  const int sum =
      test::add_call(one, "aten::sum", {{"self", graph::ValueRef{0}}, {"dtype", {}}})[0];
  one.outputs.resize(1);
  one.outputs[0].node = graph::ValueRef{sum};
  const auto graph = std::make_shared<const graph::Graph>(std::move(one));
  for (const int devices : {1, 2})
    CHECK(solve::solve(problem_of(graph, devices), std::nullopt).plan.ops.size() == 1);
  CHECK(solve::solve(problem_of(graph, 2), std::nullopt, {.pipeline = 0}).plan.stages == 1);
  try {
    solve::solve(problem_of(graph, 2), std::nullopt, {.pipeline = 2});
    FAIL("one operator fills two stages");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::plan);
    CHECK(
        e.message().starts_with("[solve.pipeline] no pipeline of 2 device(s) with 3 "
                                "micro-batches is as asked: 2 pipeline rank(s)"));
  }
}

TEST_CASE("a search that is cut short says how far it may be off", "[solve]") {
  const Space space(problem_of(test::transformer(3), 4));
  const auto all = search(space, {});
  const auto least = least_resting(space);
  const auto found = search(space, {.memory = 2 * least, .labels = 100, .beam = 4});
  if (found) {
    CHECK_FALSE(found->exact);
    CHECK(found->seconds >= all->seconds);
  }
  CHECK_FALSE(search(space, {.memory = 2 * least, .labels = 100, .beam = 4, .exact = true}));
  // Where the limit keeps the exact search from its end, the solution has a gap.
  const auto problem = problem_of(test::transformer(6), 4);
  const Solution free = solve::solve(problem, std::nullopt);
  const Solution less = solve::solve(problem, free.cost.total * 9 / 10);
  CHECK(less.fastest <= free.cost.seconds * (1 + 1e-9));
  if (!less.exact) CHECK(less.cost.seconds * (1 - less.gap) <= free.cost.seconds * (1 + 1e-9));
}
