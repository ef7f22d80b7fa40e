// Runs the Programs of all ranks of a plan together on plain arrays, in one process: one step of
// training on some micro-batches, or their evaluation.
//
// Slots are released as the Programs say and are gone then, so a use after release throws, as does
// memory that nobody released. Between segments only what is saved is handed on.
#pragma once

#include <functional>
#include <memory>

#include "lower/memory.h"
#include "lower/skeleton.h"
#include "lower/traffic.h"
#include "plan/plan.h"
#include "support/array.h"

namespace nns::test {

using Tensors = std::map<std::string, Array>;  // by name

// A result of a call as it returned: call number `call` of a segment, on a micro-batch of the step.
struct Watched {
  int rank = 0, micro = 0, call = 0, out = 0;
  const lower::Segment* segment = nullptr;
  Array data;
};

// What runs: whole weights and buffers, and one sample (its fields) a micro-batch, all of one
// shape. The weight of micro-batch k in the loss is k + 1.
struct Inputs {
  Tensors weights;  // parameters and buffers
  std::vector<Tensors> samples;
  std::function<void(Watched)> watch = {};  // gets every result, if any
};

// Bytes of one rank.
struct Measured {
  int64_t peak = 0;                     // of the tensors made while one micro-batch ran
  int64_t saved = 0;                    // after its forward
  std::map<std::string, int64_t> sent;  // by "segment op ranks", over all micro-batches
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> runs;  // of each segment
  int64_t copied_gradients = 0;         // accumulations that had to copy
};

struct Outcome {
  std::vector<double> losses;  // of each micro-batch, alike on all ranks that return it
  Tensors gradients;           // whole, summed over ranks and micro-batches
  Tensors buffers;             // whole, as they are after the step
  std::vector<std::vector<Tensors>> results;  // of each micro-batch and rank: what else it returned
  std::vector<Measured> ranks;
};

// Programs of all ranks: without a plan, one on one device.
struct Programs {
  std::shared_ptr<const graph::Graph> graph;
  std::shared_ptr<const plan::Plan> plan;
  std::vector<lower::Lowered> ranks;
  std::shared_ptr<const lower::Skeleton> skeleton = {};
};
Programs lower_all(std::shared_ptr<const graph::Graph> graph,
                   std::shared_ptr<const plan::Plan> plan = nullptr,
                   std::shared_ptr<const lower::Skeleton> first = nullptr);

Outcome run(const Programs& programs, const Inputs& inputs);

// Random weights in [-1, 1], inputs of the graph's types; integers lie below `below`.
Inputs random_inputs(const graph::Graph& graph, size_t micro_batches, uint64_t seed,
                     int64_t below = 3);

}  // namespace nns::test
