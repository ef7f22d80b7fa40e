// The planner's tables against the simulator of lowered programs, and its search against all plans.
#include "solve/solve.h"

#include <catch2/catch.hpp>
#include <random>
#include <tuple>

#include "base/error.h"
#include "lower/skeleton.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::solve;

namespace {

using Candidates = std::vector<uint8_t>;

// Hardware on which every kind of cost shows in graphs of a few numbers.
cost::Hardware small_machine(uint32_t seed = 0) {
  cost::Hardware on = cost::find_hardware("h100");
  std::mt19937 random(seed);
  const auto factor = [&] {
    return seed == 0 ? 1.0 : std::exp2(static_cast<int>(random() % 7) - 3.0);
  };
  on.start = 1e-9;
  on.half_filled = 16;
  on.flops = {{DType::f32, 1e9 * factor()}, {DType::f64, 1e9 * factor()}};
  on.memory_bandwidth = 4e9 * factor();
  on.links.call = 3e-8 * factor();
  on.links.latency = 1e-9 * factor();
  on.links.seconds_per_byte = 1e-9 * factor();
  return on;
}

Problem problem_of(std::shared_ptr<const graph::Graph> graph, int devices, int units = 1,
                   uint32_t seed = 0) {
  Problem problem{std::move(graph), devices, devices * units, "cpu", small_machine(seed), {}};
  problem.settings.micro_batches = 3;
  problem.settings.bucket_bytes = 64;
  return problem;
}

lower::StepCost simulated(const Space& space, const Candidates& choice) {
  const Problem& problem = space.problem();
  const plan::Plan plan = plan_of(space, {choice}, "test");
  lower::Options options;
  options.device = problem.device;
  options.plan = std::make_shared<const plan::Plan>(plan);
  const lower::Skeleton skeleton(problem.graph, options);
  return lower::simulate(skeleton, plan, problem.on, problem.settings);
}

size_t candidates_at(const Space& space, size_t i) {
  const Step& step = space.steps()[static_cast<size_t>(space.sequence()[i])];
  return step.kind < 0 ? 1 : space.kinds()[static_cast<size_t>(step.kind)].candidates.size();
}

Candidates random_choice(const Space& space, std::mt19937& random) {
  Candidates out;
  for (size_t i = 0; i < space.sequence().size(); ++i)
    out.push_back(static_cast<uint8_t>(random() % candidates_at(space, i)));
  return out;
}

// All plans of a space, in the order of counting; `visit` takes each.
template <class F>
void for_each_choice(const Space& space, F visit) {
  Candidates choice(space.sequence().size(), 0);
  while (true) {
    visit(choice);
    size_t i = 0;
    while (i < choice.size() && ++choice[i] == candidates_at(space, i)) choice[i++] = 0;
    if (i == choice.size()) return;
  }
}

double count_choices(const Space& space) {
  double n = 1;
  for (size_t i = 0; i < space.sequence().size(); ++i)
    n *= static_cast<double>(candidates_at(space, i));
  return n;
}

void compare(const Space& space, const Candidates& choice) {
  const auto mine = price(space, choice);
  REQUIRE(mine);
  const lower::StepCost real = simulated(space, choice);
  const auto same = [&] {
    return std::abs(mine->seconds - real.seconds) <= 1e-9 * real.seconds &&
           mine->resting == real.resting && mine->saved == real.saved;
  };
  if (!same()) UNSCOPED_INFO(plan::to_text(plan_of(space, {choice}, "test")));
  CHECK(mine->seconds == Approx(real.seconds).epsilon(1e-9));
  CHECK(mine->resting == real.resting);
  CHECK(mine->saved == real.saved);
}

}  // namespace

TEST_CASE("a plan costs the sum of its pieces", "[solve]") {
  std::mt19937 random(7);
  const std::vector<std::pair<const char*, test::GraphPtr>> models = {
      {"perceptrons", test::perceptrons(2)},  {"transformer", test::transformer(2)},
      {"convolutions", test::convolutions()}, {"alike", test::alike(3)},
      {"linears", test::linears()},           {"oddities", test::oddities()}};
  for (const auto& [name, graph] : models)
    for (const int devices : {1, 2, 4})
      for (const int units : {1, 2}) {
        const Space space(problem_of(graph, devices, units));
        for (int trial = 0; trial < (devices == 1 ? 1 : 8); ++trial) {
          INFO(name << " on " << devices << " x " << units << ", trial " << trial);
          compare(space, random_choice(space, random));
        }
      }
}

namespace {

// A graph of so many calls on [8, 8]; weights may be read twice, and values by several calls.
test::GraphPtr random_graph(std::mt19937& random, int calls) {
  graph::Graph g;
  g.name = "Random";
  const auto leaf = [&](graph::Role role, Shape shape, const std::string& name) {
    const int id = static_cast<int>(g.values.size());
    g.values.push_back(
        {id, {std::move(shape), DType::f64}, role, role == graph::Role::parameter, name, -1, {}});
    return id;
  };
  g.inputs = {leaf(graph::Role::input, {8, 8}, "x")};
  std::vector<int> values = {g.inputs[0]}, weights;
  const auto any = [&](const std::vector<int>& list) {
    return graph::ValueRef{list[random() % list.size()]};
  };
  const auto recent = [&] {
    return graph::ValueRef{
        values[values.size() - 1 - random() % std::min<size_t>(2, values.size())]};
  };
  const auto call = [&](const char* op, std::vector<graph::NamedArg> args, int block) {
    return test::add_call(g, op, std::move(args), fmt::format("h.{}", block))[0];
  };
  // Some graphs repeat their calls, as layers do.
  const int length = random() % 2 == 0 ? calls - 1 : (calls - 1) / 2;
  std::vector<uint32_t> script;
  for (int i = 0; i < length; ++i) script.push_back(static_cast<uint32_t>(random() % 8));
  for (int i = 0; i < calls - 1; ++i) {
    const int block = i / length;
    const auto x = recent();
    switch (script[static_cast<size_t>(i % length)]) {
      case 0:
      case 1: {
        const bool tied = !weights.empty() && random() % 3 == 0;
        if (!tied) {
          weights.push_back(leaf(graph::Role::parameter, {8, 8}, fmt::format("w{}", i)));
          g.parameters.push_back(weights.back());
        }
        values.push_back(call("aten::linear",
                              {{"input", x},
                               {"weight", tied ? any(weights) : graph::ValueRef{weights.back()}},
                               {"bias", {}}},
                              block));
        break;
      }
      case 2:
        values.push_back(call("aten::relu", {{"self", x}}, block));
        break;
      case 3:
        values.push_back(call("aten::add.Tensor",
                              {{"self", x}, {"other", any(values)}, {"alpha", int64_t{1}}}, block));
        break;
      case 4:
        values.push_back(call("aten::mul.Tensor", {{"self", x}, {"other", any(values)}}, block));
        break;
      case 5:
        values.push_back(call("aten::t", {{"self", x}}, block));
        break;
      case 6:
        values.push_back(
            call("aten::softmax.int", {{"self", x}, {"dim", int64_t{-1}}, {"dtype", {}}}, block));
        break;
      default:
        values.push_back(call("aten::mm", {{"self", x}, {"mat2", any(values)}}, block));
    }
  }
  const int loss =
      test::add_call(g, "aten::sum", {{"self", graph::ValueRef{values.back()}}, {"dtype", {}}})[0];
  g.outputs.resize(random() % 3 == 0 ? 2 : 1);
  g.outputs[0].node = graph::ValueRef{loss};
  if (g.outputs.size() == 2) g.outputs[1].node = any(values);
  for (graph::Value& value : g.values)
    if (value.producer >= 0) value.requires_grad = true;
  return std::make_shared<const graph::Graph>(std::move(g));
}

struct Priced {
  double seconds;
  int64_t bytes;
};

// Every plan, one call after another, without any of the search's shortcuts.
void enumerate(const Space& space, const Mover& mover, size_t i, const Frontier& frontier,
               const Added& so_far, std::vector<Priced>& out) {
  if (i == space.sequence().size()) {
    out.push_back({so_far.seconds, so_far.resting + so_far.saved});
    return;
  }
  const int number = space.sequence()[i];
  for (size_t c = 0; c < candidates_at(space, i); ++c)
    for (uint32_t h = 0; h < mover.homes(number); ++h) {
      Frontier next = frontier;
      Added added = so_far;
      if (mover.move(number, c, h, next, added)) enumerate(space, mover, i + 1, next, added, out);
    }
}

}  // namespace

TEST_CASE("the search finds what trying all plans finds", "[solve]") {
  std::mt19937 random(11);
  int graphs = 0, limited = 0, refused = 0;
  while (graphs < 300) {
    const auto graph = random_graph(random, 3 + static_cast<int>(random() % 6));
    const int devices = random() % 2 == 0 ? 2 : 4;
    const Space space(problem_of(graph, devices, 1 + static_cast<int>(random() % 2),
                                 static_cast<uint32_t>(random())));
    if (count_choices(space) > 300) continue;
    INFO("graph " << ++graphs << "\n" << graph::to_text(*graph, false));
    std::vector<Priced> all;
    enumerate(space, Mover(space, true), 0, {}, {0, space.unread(), 0}, all);
    REQUIRE(static_cast<double>(all.size()) == count_choices(space));
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
    const auto fastest = [&](int64_t bytes) {
      double best = 1e300;
      for (const Priced& p : all)
        if (p.bytes <= bytes) best = std::min(best, p.seconds);
      return best;
    };
    const auto free = search(space, {});
    REQUIRE(free);
    CHECK(free->exact);
    CHECK(free->seconds == Approx(fastest(all.back().bytes)).epsilon(1e-9));
    for (const int64_t limit :
         {all[0].bytes - 1, all[0].bytes, all[all.size() / 8].bytes, all[all.size() / 2].bytes}) {
      const auto found = search(space, {limit});
      REQUIRE(found.has_value() == (limit >= all[0].bytes));
      if (!found && ++refused) continue;
      CHECK(found->exact);
      CHECK(found->resting + found->saved <= limit);
      CHECK(found->seconds == Approx(fastest(limit)).epsilon(1e-9));
      limited += found->seconds > free->seconds * 1.000001;
    }
    CHECK(least_resting(space) <= all[0].bytes);
  }
  CHECK(refused == 300);
  CHECK(limited > 50);
}

TEST_CASE("no plan that is lowered and simulated is faster", "[solve]") {
  std::mt19937 random(13);
  for (int graphs = 0; graphs < 30;) {
    const auto graph = random_graph(random, 3 + static_cast<int>(random() % 3));
    const Space space(
        problem_of(graph, random() % 2 == 0 ? 2 : 4, 1, static_cast<uint32_t>(random())));
    if (count_choices(space) > 120) continue;
    INFO("graph " << ++graphs << "\n" << graph::to_text(*graph, false));
    double best = 1e300;
    for_each_choice(space, [&](const Candidates& choice) {
      compare(space, choice);
      best = std::min(best, simulated(space, choice).seconds);
    });
    CHECK(search(space, {})->seconds == Approx(best).epsilon(1e-9));
  }
}

TEST_CASE("the same question gets the same plan, byte for byte", "[solve]") {
  const auto text = [] {
    return plan::to_json(solve::solve(problem_of(test::transformer(3), 4), std::nullopt).plan);
  };
  CHECK(text() == text());
}

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
        e.message().starts_with("[solve.memory] no plan of 2 device(s) keeps 0.00 GiB a device; "
                                "weights, gradients and optimizer state take 0.00 GiB at least"));
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

TEST_CASE("repeated layers are explored once", "[solve]") {
  const auto labels = [](int layers) {
    return search(Space(problem_of(test::transformer(layers), 4)), {})->labels;
  };
  CHECK(labels(24) <= labels(6) * 5 / 4);
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
  const Table table(space, *traced);
  const auto schedule = lower::make_schedule("1f1b", 3, 6);
  Arrangement a{found->candidates};
  const auto places = table.places(3, {});
  const auto begins = divide(table, a, schedule, places, std::nullopt);
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
    const Choices choices{.pipeline = 0};
    const Solution free = solve::solve(problem, std::nullopt, choices);
    double before = 1e300;
    int found = 0;
    for (int step = 1; step <= 12; ++step) {
      const int64_t limit = free.cost.total * (8 * step + 4) / 100;
      INFO(name << ", " << limit << " bytes of " << free.cost.total);
      try {
        const Solution less = solve::solve(problem, limit, choices);
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
  // Where the limit keeps the exact search from its end, the solution has a gap.
  const auto problem = problem_of(test::transformer(6), 4);
  const Solution free = solve::solve(problem, std::nullopt);
  const Solution less = solve::solve(problem, free.cost.total * 6 / 10);
  CHECK(less.fastest <= free.cost.seconds * (1 + 1e-9));
  if (!less.exact) CHECK(less.cost.seconds * (1 - less.gap) <= free.cost.seconds * (1 + 1e-9));
}
