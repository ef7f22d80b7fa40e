// The derivative of every operator that has a rule, against finite differences: the Program is run
// by the tests' interpreter.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/graph_text.h"
#include "support/interpreter.h"
#include "support/operator_cases.h"

using namespace nns;
using namespace nns::test;

namespace {

constexpr double kStep = 1e-5;

// (f(x + h) - f(x - h)) / 2h for each element of each parameter.
Tensors differences(const Programs& programs, Inputs inputs) {
  Tensors out;
  for (auto& [name, weight] : inputs.weights) {
    Array slope = Array::filled(weight.shape);
    for (size_t i = 0; i < weight.memory->data.size(); ++i) {
      double& x = weight.memory->data[i];
      const double at = x;
      x = at + kStep;
      const double above = run(programs, inputs).losses[0];
      x = at - kStep;
      const double below = run(programs, inputs).losses[0];
      x = at;
      slope.memory->data[i] = (above - below) / (2 * kStep);
    }
    out[name] = slope;
  }
  return out;
}

}  // namespace

TEST_CASE("derivatives are the slopes of their operators") {
  for (const OperatorCase& c : operator_cases()) {
    if (!c.slope) continue;
    INFO(c.title());
    const auto graph = graph_of(c);
    const Programs programs = lower_all(graph);
    CHECK(programs.ranks[0].fallbacks.empty());
    const Inputs inputs = inputs_of(c, *graph, 1, 11);
    const Outcome got = run(programs, inputs);
    const Tensors want = differences(programs, inputs);
    for (const auto& [name, slope] : want) {
      INFO("gradient of " << name);
      const auto found = got.gradients.find(name);
      const Array gradient =
          found == got.gradients.end() ? Array::filled(slope.shape) : found->second;
      CHECK(largest_difference(gradient, slope) <= 2e-8 * std::max(1.0, largest(slope)));
    }
  }
}

TEST_CASE("rows of a table that are left out or counted") {
  // d Σ k · w[i] / d w[r] is the sum of k where i = r; divided by how often r comes, or left out.
  for (const OperatorCase& c : operator_cases()) {
    if (c.slope) continue;
    INFO(c.title());
    const auto graph = graph_of(c);
    const Inputs inputs = inputs_of(c, *graph, 1, 11);
    Array indices, k;
    for (const auto& [name, array] : inputs.samples[0])
      (array.dtype == DType::i64 ? indices : k) = array;
    Array want = Array::filled({6, 4});
    const bool scaled = c.lines.find("scale_grad_by_freq") != std::string::npos;
    for (int64_t row = 0; row < 6; ++row) {
      int times = 0;
      each(indices.shape, [&](const Index& i) {
        if (static_cast<int64_t>(indices.at(i)) != row) return;
        ++times;
        for (int64_t e = 0; e < 4; ++e) want.at({row, e}) += k.at({i[0], i[1], e});
      });
      for (int64_t e = 0; e < 4; ++e)
        if (times > 0) want.at({row, e}) *= scaled ? 1.0 / times : row == 2 ? 0 : 1;
    }
    const Outcome got = run(lower_all(graph), inputs);
    CHECK(largest_difference(got.gradients.at("w"), want) <= 1e-12);
  }
}

TEST_CASE("an operator without a rule runs under autograd again, and is named") {
  const auto graph = graph_of({"a=4,6", "%y = aten::cumprod(self=%a, dim=1)"});
  const lower::Lowered lowered = lower::lower(*graph);
  REQUIRE(lowered.fallbacks.size() == 1);
  CHECK(lowered.fallbacks[0].op == "aten::cumprod");
}
