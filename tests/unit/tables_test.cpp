// The solver's tables, term by term, beside what the simulator says of lowered programs: plans of
// ten models drawn at random.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "lower/skeleton.h"
#include "solve/solve.h"
#include "support/models.h"
#include "support/solving.h"

using namespace nns;
using namespace nns::solve;

namespace {

test::GraphPtr with_dtype(const test::GraphPtr& graph, DType dtype) {
  graph::Graph out = *graph;
  for (graph::Value& value : out.values)
    if (value.type.dtype == DType::f64) value.type.dtype = dtype;
  return std::make_shared<const graph::Graph>(std::move(out));
}

// The same with every third weight as it is.
test::GraphPtr partly_frozen(const test::GraphPtr& graph) {
  graph::Graph out = *graph;
  for (size_t i = 1; i < out.parameters.size(); i += 3)
    out.values[static_cast<size_t>(out.parameters[i])].requires_grad = false;
  return std::make_shared<const graph::Graph>(std::move(out));
}

std::vector<std::pair<const char*, test::GraphPtr>> models() {
  return {{"perceptrons, partly frozen", partly_frozen(test::perceptrons(2))},
          {"perceptrons in float32", with_dtype(test::perceptrons(3), DType::f32)},
          {"transformer", test::transformer(2)},
          {"transformer in float32", with_dtype(test::transformer(3), DType::f32)},
          {"convolutions", test::convolutions()},
          {"alike", test::alike(3)},
          {"alike in bfloat16", with_dtype(test::alike(6), DType::bf16)},
          {"linears", test::linears()},
          {"wide linears", test::linears({8, 16, 4, 12, 8})},
          {"oddities", test::oddities()}};
}

std::vector<uint8_t> random_choice(const Space& space, std::mt19937& random) {
  std::vector<uint8_t> out;
  for (int number : space.sequence()) {
    const Step& step = space.steps()[static_cast<size_t>(number)];
    const size_t n =
        step.kind < 0 ? 1 : space.kinds()[static_cast<size_t>(step.kind)].candidates.size();
    out.push_back(static_cast<uint8_t>(random() % n));
  }
  return out;
}

lower::StepCost simulated(const Space& space, const Arrangement& arrangement) {
  const Problem& problem = space.problem();
  const plan::Plan plan = plan_of(space, arrangement, "test");
  lower::Options options;
  options.device = problem.device;
  options.set_bytes = problem.settings.bucket_bytes;
  options.plan = std::make_shared<const plan::Plan>(plan);
  return lower::simulate(lower::Skeleton(problem.graph, options), plan, problem.on,
                         problem.settings);
}

void same(double mine, double theirs, double of) {
  CHECK(std::abs(mine - theirs) <= 1e-9 * of);
}

}  // namespace

// The peak is no sum: what is there at one time hangs on the order of all calls, and on which of
// them writes where another's operand was. The table has a bound of it from below.
TEST_CASE("terms of a plan are those of its programs", "[solve]") {
  constexpr int kPlans = 100;  // of each model
  std::mt19937 random(23);
  for (const auto& [name, graph] : models()) {
    for (int i = 0; i < kPlans;) {
      const int devices = 1 << random() % 3, units = 1 << random() % 3;
      const int zero = units == 1 ? 0 : static_cast<int>(random() % 4);
      auto problem = test::problem_of(graph, devices, units, static_cast<uint32_t>(random() % 4));
      // Sets of one weight, where weights are gathered once a step.
      if (zero == plan::Zero::slots || zero == plan::Zero::gradients)
        problem.settings.bucket_bytes = 1;
      const Space space(problem);
      for (int trial = 0; trial < 4 && i < kPlans; ++trial, ++i) {
        INFO(name << " on " << devices << " x " << units << ", ZeRO " << zero << ", plan " << i);
        Arrangement arrangement{random_choice(space, random)};
        arrangement.zero = zero;
        const auto traced = trace(space, arrangement.candidates, zero);
        REQUIRE(traced);
        const Added mine = price(space, arrangement.candidates, zero).value();
        const lower::StepCost real = simulated(space, arrangement);
        const double of = real.seconds, m = problem.settings.micro_batches;
        const double work = real.forward.work + real.backward.work;
        const double sent = real.forward.communication + real.backward.communication;
        same(mine.micro - mine.sent, work, of);
        same(mine.sent, sent, of);
        same(mine.forward, real.forward.all(), of);
        same(mine.update, real.once.update, of);
        same(mine.seconds - m * mine.micro - mine.update, real.once.sum, of);
        same(mine.seconds, real.seconds, of);
        CHECK(mine.resting == real.resting);
        CHECK(mine.saved == real.saved);
        const Table table(space, arrangement.candidates, *traced);
        const auto order = lower::make_schedule("1f1b", 1, problem.settings.micro_batches);
        const int64_t bound = estimate(table, arrangement, order).bytes;
        CHECK(bound <= real.total);
        CHECK(3 * bound > 2 * real.total);
      }
    }
  }
}

TEST_CASE("weights gathered in sets cost little more than their parts", "[solve]") {
  std::mt19937 random(29);
  for (const auto& [name, graph] : models())
    for (const int zero : {plan::Zero::slots, plan::Zero::gradients})
      for (const int64_t bucket : {64, 300, 1 << 20}) {
        auto problem = test::problem_of(graph, 2, 4);
        problem.settings.bucket_bytes = bucket;
        const Space space(problem);
        Arrangement arrangement{random_choice(space, random)};
        arrangement.zero = zero;
        const Added mine = price(space, arrangement.candidates, zero).value();
        const lower::StepCost real = simulated(space, arrangement);
        INFO(name << ", ZeRO " << zero << ", sets of " << bucket);
        CHECK(mine.seconds <= (1 + 1e-9) * real.seconds);
        CHECK(mine.seconds >= 0.99 * real.seconds);
        CHECK(mine.resting == real.resting);
      }
}

// A weight that several stages read would rest in each of them; here each is read in one.
TEST_CASE("what a stage of a pipeline rests in is the sum of its calls", "[solve]") {
  std::mt19937 random(31);
  for (const auto& [name, graph] : {std::pair("alike", test::alike(6)),
                                    {"linears", test::linears({8, 16, 4, 12, 8})},
                                    {"convolutions", test::convolutions()}})
    for (int trial = 0; trial < 40; ++trial) {
      const int ranks = 2 + static_cast<int>(random() % 2), width = 1 << random() % 2;
      const int units = 1 << random() % 2;
      auto problem = test::problem_of(graph, ranks * width, units);
      problem.pipeline = ranks;
      const Space space(problem);
      Arrangement arrangement{random_choice(space, random)};
      arrangement.zero = units == 1 ? 0 : static_cast<int>(random() % 4);
      const auto traced = trace(space, arrangement.candidates, arrangement.zero);
      REQUIRE(traced);
      const Table table(space, arrangement.candidates, *traced);
      std::vector<size_t> places = table.places({});
      std::shuffle(places.begin(), places.end(), random);
      places.resize(static_cast<size_t>(ranks) - 1);
      std::sort(places.begin(), places.end());
      arrangement.begins = places;
      INFO(name << ": " << describe(space, arrangement) << ", trial " << trial);
      const lower::StepCost real = simulated(space, arrangement);
      std::vector<int64_t> rests(static_cast<size_t>(ranks), 0);
      for (const lower::RankAccount& rank : real.ranks) {
        int64_t& most = rests[static_cast<size_t>(rank.row)];  // where shards are uneven
        most = std::max(most, rank.memory.total() - rank.memory.peak + rank.state);
      }
      places.push_back(table.size());
      for (size_t stage = 0, begin = 0; stage < places.size(); begin = places[stage++])
        CHECK(table.stage(begin, places[stage]).resting == rests[stage]);
    }
}
