// Every cut that an operator's annotation allows, against the whole operator: losses and all
// gradients of Programs on two and three devices. And plans drawn at random.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "lower/check_ranks.h"
#include "plan/builder.h"
#include "support/drawn_plan.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/operator_cases.h"

using namespace nns;
using namespace nns::test;
using plan::Builder;

namespace {

void replicate_rest(Builder& b) {
  for (const graph::Node& node : b.graph().nodes)
    if (!b.planned(node.id))
      b.replicate(node.id, static_cast<int>(b.devices_of_stage(b.stage_of(node.id)).size()));
}

std::string compare(const GraphPtr& graph, const plan::Plan& plan, const Inputs& inputs,
                    const Outcome& want, Digest* digest = nullptr) {
  const auto shared = std::make_shared<const plan::Plan>(plan);
  const Programs programs = lower_all(graph, shared);
  if (digest != nullptr) digest->add(programs);
  const Outcome got = run(programs, inputs);
  if (const std::string off = difference(want, got); !off.empty()) return off;
  std::vector<const lower::Program*> all;
  for (const auto& lowered : programs.ranks) all.push_back(&lowered.program);
  lower::check_ranks(all, plan);
  return miscounted(programs, got);
}

}  // namespace

TEST_CASE("every cut of every operator is the whole") {
  int cuts = 0;
  std::string digests;
  for (const OperatorCase& c : operator_cases()) {
    Digest digest;
    const GraphPtr graph = graph_of(c);
    const Inputs inputs = inputs_of(c, *graph, 1, 3);
    const Outcome want = run(lower_all(graph), inputs);
    const int calls = static_cast<int>(calls_of(c).nodes.size());
    for (int parts : {2, 3})
      for (int node = 0; node < calls; ++node)
        for (const annotate::Place& place : Builder(graph, parts, parts).choices(node)) {
          Builder b(graph, parts, parts);
          // Of three parts only those that differ: the even ones are seen with two.
          const bool uneven = parts == 3;
          if (b.refusal(node, place.input, place.dim, parts, uneven)) continue;
          INFO(c.title() << ": node " << node << ", input " << place.input << ", dimension "
                         << place.dim << " in " << parts);
          b.partition(node, place.input, place.dim, parts, uneven);
          replicate_rest(b);
          CHECK(compare(graph, b.finish("hand"), inputs, want, &digest) == "");
          ++cuts;
        }
    digests += digest.text() + "  " + c.title() + "\n";
  }
  CHECK(cuts > 500);
  is_golden("cuts", digests);
}

TEST_CASE("plans drawn at random are one device") {
  int ran = 0, refused = 0;
  CHECK(rc::check([&] {
    Drawn drawn;
    try {
      drawn = draw_plan([](int low, int high) { return *rc::gen::inRange(low, high); });
      const Inputs inputs = random_inputs(
          *drawn.graph, static_cast<size_t>(drawn.plan.units() * drawn.plan.micro_batches), 5);
      const Outcome want = run(lower_all(drawn.graph), inputs);
      const std::string off = compare(drawn.graph, drawn.plan, inputs, want);
      if (!off.empty()) RC_FAIL(off + "\n" + plan::to_text(drawn.plan));
    } catch (const Error& e) {
      // A plan that is refused by name is none; anything else is a fault.
      if (e.kind() != ErrorKind::plan) RC_FAIL(e.message() + "\n" + plan::to_text(drawn.plan));
      ++refused;
      return;
    }
    ++ran;
  }));
  CAPTURE(refused);
  CHECK(ran >= 60);
}

TEST_CASE("a scale unit whose devices see other rows is a ZeRO group by itself") {
  const GraphPtr graph = transformer(2);
  for (int level : {1, 2, 3}) {
    Builder b(graph, 2, 4);
    for (const graph::Node& node : graph->nodes) {
      if (b.refusal(node.id, 0, 0, 2))
        b.replicate(node.id, 2);
      else
        b.partition(node.id, 0, 0, 2);
    }
    b.zero(level);
    b.zero_groups(2);
    const Inputs inputs = random_inputs(*graph, 2, 5);
    CHECK(compare(graph, b.finish("rows"), inputs, run(lower_all(graph), inputs)).empty());
  }
}

TEST_CASE("a rank whose numbers are equal where their marks differ is a class by itself") {
  const GraphPtr graph = transformer(2);
  Builder b(graph, 4, 8);
  b.partition(0, 0, 0, 4, true);
  for (int node : {1, 4, 5}) {
    b.partition(node, 0, 0, 2);
    b.partition(node, 0, 0, 2);
  }
  b.partition(2, 0, 1, 2);
  b.replicate(2, 2);
  b.partition(3, 0, 2, 2);
  b.replicate(3, 2);
  b.partition(7, 0, 0, 2);
  b.partition(7, 0, 1, 2);
  b.replicate(8, 2);
  b.partition(8, 0, 0, 2);
  replicate_rest(b);
  for (const graph::Node& node : graph->nodes)
    b.assign(node.id, node.id == 7 ? std::vector{0, 1, 2, 3} : std::vector{3, 2, 1, 0});
  b.zero(plan::Zero::slots);
  b.zero_groups(2);
  b.zero_scatter();
  const Inputs inputs = random_inputs(*graph, 2, 5);
  CHECK(compare(graph, b.finish("drawn"), inputs, run(lower_all(graph), inputs)).empty());
}
