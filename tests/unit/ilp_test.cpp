// The second engine of the planner against the first one, against all plans, and its bounds against
// plans that are lowered and simulated.
#include "solve/ilp.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/skeleton.h"
#include "solve/bound.h"
#include "solve/linear.h"
#include "support/graph_text.h"
#include "support/models.h"
#include "support/random_graph.h"
#include "support/solving.h"

using namespace nns;
using namespace nns::solve;
using test::problem_of;

namespace {

// Where the build found no HiGHS, these tests have nothing to look at.
bool lacks_highs() {
  if (highs_problem().empty()) return false;
  WARN("skipped: there is no HiGHS: " << highs_problem());
  return true;
}

// The integer program, its relaxation and that of classes against what the search found.
void compare(const Space& space, int zero, std::optional<int64_t> memory) {
  const auto found = search(space, {.memory = memory, .zero = zero});
  const auto best = optimum(space, {.memory = memory, .zero = zero});
  REQUIRE(best);
  REQUIRE(best->found == found.has_value());
  if (!found) return;
  REQUIRE(found->exact);
  CHECK(best->seconds == Approx(found->seconds).epsilon(1e-7));
  const auto priced = price(space, best->candidates, zero);
  REQUIRE(priced);
  CHECK(priced->seconds == Approx(found->seconds).epsilon(1e-7));
  if (memory) CHECK(priced->resting + priced->saved <= *memory);
  for (const bool classes : {false, true}) {
    const auto least = least_seconds(space, {.memory = memory, .zero = zero, .classes = classes});
    REQUIRE(least);
    CHECK(*least <= found->seconds * (1 + 1e-9));
  }
}

}  // namespace

TEST_CASE("linear programs are solved, and prices prove bounds", "[ilp]") {
  if (lacks_highs()) return;
  // The most of 3a + 2b, with 2a + b ≤ 3 and a + b ≤ 2 (a = b = 1), and with 2a + 2b ≤ 3.
  LinearProgram program;
  const int a = program.column(-3, 10, true), b = program.column(-2, 10, true);
  program.row(-LinearProgram::kInfinite, {{a, 2}, {b, 1}}, 3);
  program.row(-LinearProgram::kInfinite, {{a, 1}, {b, 1}}, 2);
  const auto best = solve_linear(program, false);
  REQUIRE(best->status == LinearAnswer::Status::solved);
  CHECK(best->cost == Approx(-5));
  CHECK(best->values == std::vector<double>{1, 1});
  program.row(-LinearProgram::kInfinite, {{a, 2}, {b, 2}}, 3);
  CHECK(solve_linear(program, false)->cost == Approx(-3));
  const auto relaxed = solve_linear(program, true);
  CHECK(relaxed->cost == Approx(-4.5));
  CHECK(bound_by(program, relaxed->prices) == Approx(-4.5));
  // Any prices prove something, but no more than is true.
  CHECK(bound_by(program, {0, 0, 0}) == Approx(-50));
  CHECK(bound_by(program, {-1, -1, -0.5}) <= -4.5);
  program.row(4, {{a, 1}}, 4);
  CHECK(solve_linear(program, false)->status == LinearAnswer::Status::infeasible);
}

TEST_CASE("two engines find plans that cost the same", "[ilp]") {
  if (lacks_highs()) return;
  std::mt19937 random(23);
  int limited = 0;
  for (int graphs = 0; graphs < 120;) {
    const auto graph = test::random_graph(random, 3 + static_cast<int>(random() % 6));
    const int devices = random() % 2 == 0 ? 2 : 4, units = 1 + static_cast<int>(random() % 2);
    const Space space(problem_of(graph, devices, units, static_cast<uint32_t>(random())));
    if (test::count_choices(space) > 300) continue;
    const int zero = units == 1 ? 0 : static_cast<int>(random() % 4);
    INFO("graph " << ++graphs << " on " << devices << " x " << units << ", ZeRO " << zero << "\n"
                  << graph::to_text(*graph, false));
    auto all = test::all_plans(space, zero);
    std::ranges::sort(all, {}, &test::Priced::bytes);
    compare(space, zero, std::nullopt);
    for (const int64_t limit :
         {all[0].bytes - 1, all[0].bytes, all[all.size() / 8].bytes, all[all.size() / 2].bytes}) {
      INFO("limit " << limit);
      compare(space, zero, limit);
      double fastest = 1e300;
      for (const test::Priced& p : all)
        if (p.bytes <= limit) fastest = std::min(fastest, p.seconds);
      const auto best = optimum(space, {.memory = limit, .zero = zero});
      REQUIRE(best->found == (limit >= all[0].bytes));
      if (best->found) CHECK(best->seconds == Approx(fastest).epsilon(1e-7));
      limited += best->found;
    }
  }
  CHECK(limited == 360);
}

TEST_CASE("two engines agree on models", "[ilp]") {
  if (lacks_highs()) return;
  const std::vector<std::pair<const char*, test::GraphPtr>> models = {
      {"perceptrons", test::perceptrons(2)},  {"transformer", test::transformer(2)},
      {"convolutions", test::convolutions()}, {"alike", test::alike(3)},
      {"linears", test::linears()},           {"oddities", test::oddities()}};
  for (const auto& [name, graph] : models)
    for (const int units : {1, 2})
      for (const int zero : {plan::Zero::none, plan::Zero::gradients, plan::Zero::weights}) {
        if (units == 1 && zero > 0) continue;
        INFO(name << " on 2 x " << units << ", ZeRO " << zero);
        compare(Space(problem_of(graph, 2, units)), zero, std::nullopt);
      }
}

TEST_CASE("layers that are equal are bounded as one", "[ilp]") {
  if (lacks_highs()) return;
  for (const auto& [name, of] :
       {std::pair("transformer", &test::transformer), std::pair("alike", &test::alike)})
    for (const int zero : {plan::Zero::none, plan::Zero::weights}) {
      INFO(name << ", ZeRO " << zero);
      const auto least = [&](int layers, bool classes) {
        const Space space(problem_of(of(layers), 4, 2));
        const Question question{.zero = zero, .classes = classes};
        const auto found = search(space, {.zero = zero});
        const auto seconds = least_seconds(space, question);
        CHECK(*seconds <= found->seconds * (1 + 1e-9));
        return std::pair(*seconds / found->seconds, Outline(space, question).objects().size());
      };
      const auto [all, objects] = least(12, false);
      const auto [few, fewer] = least(12, true);
      CHECK(all > 0.999);
      CHECK(few > 0.999);
      CHECK(fewer < objects / 3);
      CHECK(fewer == least(24, true).second);
    }
}

TEST_CASE("no plan that is simulated is below its bound", "[ilp]") {
  if (lacks_highs()) return;
  std::mt19937 random(29);
  const std::vector<std::pair<const char*, test::GraphPtr>> models = {
      {"perceptrons", test::perceptrons(4)},
      {"transformer", test::transformer(4)},
      {"alike", test::alike(6)},
      {"convolutions", test::convolutions()}};
  double nearest = 0;
  for (const auto& [name, graph] : models)
    for (const int devices : {1, 2})
      for (const int zero : {plan::Zero::none, plan::Zero::slots, plan::Zero::weights}) {
        auto problem = problem_of(graph, devices, 2);
        problem.settings.bucket_bytes = 1;
        const Space space(problem);
        for (int trial = 0; trial < 8; ++trial) {
          Arrangement arrangement{test::random_choice(space, random)};
          if (trial > 3) arrangement.candidates = search(space, {.zero = zero})->candidates;
          arrangement.zero = zero;
          arrangement.recompute = static_cast<int>(random() % 5) / 4.0;
          const plan::Plan plan = plan_of(space, arrangement, "test");
          lower::Options options;
          options.device = problem.device;
          options.set_bytes = problem.settings.bucket_bytes;
          options.plan = std::make_shared<const plan::Plan>(plan);
          const auto cost =
              lower::simulate(lower::Skeleton(graph, options), plan, problem.on, problem.settings);
          INFO(name << " on " << devices << ", ZeRO " << zero << ", recompute "
                    << arrangement.recompute << ", trial " << trial);
          for (const bool classes : {false, true}) {
            const auto least = least_seconds(
                space, {.memory = cost.total, .zero = zero, .recompute = true, .classes = classes});
            REQUIRE(least);
            CHECK(*least <= cost.seconds * (1 + 1e-9));
            nearest = std::max(nearest, *least / cost.seconds);
          }
        }
      }
  CHECK(nearest > 0.99);
}

TEST_CASE("a bound holds for all that a planner may choose", "[ilp]") {
  if (lacks_highs()) return;
  int nearer = 0, given = 0;
  for (const auto& [name, graph] :
       {std::pair("transformer", test::transformer(4)), {"alike", test::alike(6)}})
    for (const int pipeline : {1, 0}) {
      const auto problem = problem_of(graph, 2, 2);
      const Choices choices{.pipeline = pipeline};
      Planner planner(problem, choices);
      const Solution free = planner.within(std::nullopt);
      const auto within = [&](int64_t limit) -> std::optional<Solution> {
        try {
          return planner.within(limit);
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::plan);
          return std::nullopt;
        }
      };
      for (int percent = 95; percent >= 50; percent -= 15) {
        const int64_t limit = free.cost.total * percent / 100;
        const auto found = within(limit);
        if (!found) continue;
        INFO(name << ", " << pipeline << ", " << percent << " %");
        const auto least = bound(problem, limit, choices, found->cost.seconds, found->fastest);
        if (!least) continue;
        ++given;
        CHECK(*least <= found->cost.seconds);
        CHECK(*least > found->fastest);
        // The plans of any other limit that keep this one too are no faster.
        for (const int64_t other : {limit * 9 / 10, limit * 19 / 20})
          if (const auto less = within(other)) CHECK(less->cost.seconds >= *least * (1 - 1e-9));
        nearer += 1 - *least / found->cost.seconds < found->gap / 2;
      }
    }
  CHECK(given >= 3);
  CHECK(nearer >= 1);
}

namespace {

// Products of so many values that are all alive before the first of them.
test::GraphPtr wide(int values) {
  graph::Graph g;
  g.name = "Wide";
  const auto leaf = [&](graph::Role role, const std::string& name) {
    const int id = static_cast<int>(g.values.size());
    const bool weight = role == graph::Role::parameter;
    g.values.push_back({id, {{8, 8}, DType::f64}, role, weight, name, -1, {}});
    (weight ? g.parameters : g.inputs).push_back(id);
    return graph::ValueRef{id};
  };
  const auto call = [&](const char* op, std::vector<graph::NamedArg> args) {
    const graph::ValueRef out{test::add_call(g, op, std::move(args))[0]};
    g.values[static_cast<size_t>(out.id)].requires_grad = true;
    return out;
  };
  const graph::ValueRef x = leaf(graph::Role::input, "x");
  std::vector<graph::ValueRef> all;
  for (int i = 0; i < values; ++i)
    all.push_back(
        call("aten::linear", {{"input", x},
                              {"weight", leaf(graph::Role::parameter, fmt::format("w{}", i))},
                              {"bias", {}}}));
  graph::ValueRef last = all[0];
  for (int i = 1; i < values; ++i)
    last = call("aten::mm", {{"self", last}, {"mat2", all[static_cast<size_t>(i)]}});
  g.outputs.resize(1);
  g.outputs[0].node = call("aten::sum", {{"self", last}, {"dtype", {}}});
  return std::make_shared<const graph::Graph>(std::move(g));
}

}  // namespace

TEST_CASE("a search that is thinned claims nothing, and is bounded", "[ilp]") {
  const auto problem = problem_of(wide(11), 4);
  const Solution found = solve::solve(problem, std::nullopt);
  CHECK_FALSE(found.exact);
  CHECK(found.fastest == 0);
  CHECK(found.gap == 1);
  if (lacks_highs()) return;
  const auto least = bound(problem, std::nullopt, {}, found.cost.seconds, found.fastest);
  REQUIRE(least);
  CHECK(*least <= found.cost.seconds);
  CHECK(*least > 0.99 * found.cost.seconds);
}
