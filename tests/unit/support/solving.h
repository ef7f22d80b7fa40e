// Questions for the planner that tests ask.
#pragma once

#include <cmath>
#include <random>

#include "solve/space.h"

namespace nns::test {

// Hardware on which every kind of cost shows in graphs of a few numbers.
inline cost::Hardware small_machine(uint32_t seed = 0) {
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

inline solve::Problem problem_of(std::shared_ptr<const graph::Graph> graph, int devices,
                                 int units = 1, uint32_t seed = 0) {
  solve::Problem problem{std::move(graph),    devices, devices * units, "cpu",
                         small_machine(seed), {}};
  problem.settings.micro_batches = 3;
  problem.settings.bucket_bytes = 64;
  return problem;
}

}  // namespace nns::test
