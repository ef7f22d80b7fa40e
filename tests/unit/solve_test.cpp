// The planner's tables against the simulator of lowered programs, and its search against all plans.
#include "solve/solve.h"

#include <catch2/catch.hpp>
#include <random>

#include "lower/skeleton.h"
#include "support/graph_text.h"
#include "support/models.h"
#include "support/solving.h"

using namespace nns;
using namespace nns::solve;
using test::problem_of;

namespace {

using Candidates = std::vector<uint8_t>;

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
    enumerate(space, Mover(space, true), 0, {}, {0, space.unread(0).bytes, 0}, all);
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
    const auto graph = random_graph(random, 3 + static_cast<int>(random() % 6));
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
