// The planner's tables against the simulator of lowered programs, and its search against all plans.
#include "solve/solve.h"

#include <catch2/catch.hpp>
#include <random>

#include "lower/skeleton.h"
#include "support/models.h"
#include "support/random_graph.h"
#include "support/solving.h"

using namespace nns;
using namespace nns::solve;
using test::Candidates;
using test::candidates_at;
using test::count_choices;
using test::problem_of;
using test::random_choice;

namespace {

lower::StepCost simulated(const Space& space, const Candidates& choice, int zero = 0) {
  const Problem& problem = space.problem();
  Arrangement arrangement{choice};
  arrangement.zero = zero;
  const plan::Plan plan = plan_of(space, arrangement, "test");
  lower::Options options;
  options.device = problem.device;
  options.set_bytes = problem.settings.bucket_bytes;
  options.plan = std::make_shared<const plan::Plan>(plan);
  const lower::Skeleton skeleton(problem.graph, options);
  return lower::simulate(skeleton, plan, problem.on, problem.settings);
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

// Returns the seconds of the simulator.
double compare(const Space& space, const Candidates& choice, int zero = 0) {
  const auto mine = price(space, choice, zero);
  REQUIRE(mine);
  const lower::StepCost real = simulated(space, choice, zero);
  const auto same = [&] {
    return std::abs(mine->seconds - real.seconds) <= 1e-9 * real.seconds &&
           mine->resting == real.resting && mine->saved == real.saved;
  };
  if (!same()) UNSCOPED_INFO(plan::to_text(plan_of(space, {choice}, "test")));
  CHECK(mine->seconds == Approx(real.seconds).epsilon(1e-9));
  CHECK(mine->resting == real.resting);
  CHECK(mine->saved == real.saved);
  return real.seconds;
}

// The same in float32, where lowering puts sums and norms together.
test::GraphPtr as_float(const test::GraphPtr& graph) {
  graph::Graph out = *graph;
  for (graph::Value& value : out.values)
    if (value.type.dtype == DType::f64) value.type.dtype = DType::f32;
  return std::make_shared<const graph::Graph>(std::move(out));
}

}  // namespace

TEST_CASE("sums beside norms cost the sum of their pieces", "[solve]") {
  std::mt19937 random(19);
  const std::vector<std::pair<const char*, test::GraphPtr>> models = {
      {"perceptrons", as_float(test::perceptrons(3))},
      {"transformer", as_float(test::transformer(3))}};  // sums before norms too
  for (const auto& [name, graph] : models)
    for (const int devices : {1, 2, 4})
      for (const int zero : {plan::Zero::none, plan::Zero::weights}) {
        auto problem = problem_of(graph, devices, 2);
        const Space space(problem);
        if (graph == models.back().second)
          CHECK(std::any_of(space.steps().begin(), space.steps().end(),
                            [](const Step& step) { return step.of_sum; }));
        for (int trial = 0; trial < (devices == 1 ? 1 : 40); ++trial) {
          INFO(name << " on " << devices << ", ZeRO " << zero << ", trial " << trial);
          compare(space, random_choice(space, random), zero);
        }
      }
}

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

TEST_CASE("weights in shards cost the sum of their pieces", "[solve]") {
  std::mt19937 random(17);
  const std::vector<std::pair<const char*, test::GraphPtr>> models = {
      {"perceptrons", test::perceptrons(2)},
      {"transformer", test::transformer(3)},
      {"alike", test::alike(3)},
      {"linears", test::linears()}};
  for (const auto& [name, graph] : models)
    for (const int devices : {1, 2})
      for (const int units : {2, 4})
        for (const int zero : {plan::Zero::slots, plan::Zero::gradients, plan::Zero::weights}) {
          auto problem = problem_of(graph, devices, units);
          problem.settings.bucket_bytes = 1;  // sets of one weight: what each has of a set is known
          const Space space(problem);
          for (int trial = 0; trial < (devices == 1 ? 1 : 4); ++trial) {
            INFO(name << " on " << devices << " x " << units << ", ZeRO " << zero << ", trial "
                      << trial);
            compare(space, random_choice(space, random), zero);
          }
        }
}

TEST_CASE("the search finds what trying all plans finds", "[solve]") {
  std::mt19937 random(11);
  int graphs = 0, limited = 0, refused = 0;
  while (graphs < 300) {
    const auto graph = test::random_graph(random, 3 + static_cast<int>(random() % 6));
    const int devices = random() % 2 == 0 ? 2 : 4;
    const Space space(problem_of(graph, devices, 1 + static_cast<int>(random() % 2),
                                 static_cast<uint32_t>(random())));
    if (count_choices(space) > 300) continue;
    INFO("graph " << ++graphs << "\n" << graph::to_text(*graph, false));
    std::vector<test::Priced> all = test::all_plans(space);
    REQUIRE(static_cast<double>(all.size()) == count_choices(space));
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
    const auto fastest = [&](int64_t bytes) {
      double best = 1e300;
      for (const test::Priced& p : all)
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
    const auto graph = test::random_graph(random, 3 + static_cast<int>(random() % 6));
    const Space space(
        problem_of(graph, random() % 2 == 0 ? 2 : 4, 1, static_cast<uint32_t>(random())));
    if (count_choices(space) > 3000) continue;
    INFO("graph " << ++graphs << "\n" << graph::to_text(*graph, false));
    double best = 1e300;
    for_each_choice(
        space, [&](const Candidates& choice) { best = std::min(best, compare(space, choice)); });
    CHECK(search(space, {})->seconds == Approx(best).epsilon(1e-9));
  }
}

TEST_CASE("the same question gets the same plan, byte for byte", "[solve]") {
  const auto text = [] {
    return plan::to_json(solve::solve(problem_of(test::transformer(3), 4), std::nullopt).plan);
  };
  CHECK(text() == text());
}

TEST_CASE("repeated layers are explored once", "[solve]") {
  const auto labels = [](int layers) {
    return search(Space(problem_of(test::transformer(layers), 4)), {})->labels;
  };
  CHECK(labels(24) <= labels(6) * 5 / 4);
}
