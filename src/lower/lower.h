// lower: a Graph becomes the Program of a rank: forward calls rewritten to operators with
// derivative rules, the backward pass beside them, what is kept between both, and the last use of
// every tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lower/exchange.h"
#include "lower/products.h"
#include "lower/program.h"
#include "lower/sights.h"
#include "plan/plan.h"

namespace nns::lower {

class Skeleton;

struct Options {
  std::string device = "cpu";
  // Several devices: the plan, and the global rank whose program is wanted. Without a plan all runs
  // on one device.
  std::shared_ptr<const plan::Plan> plan;
  int rank = 0;
  // Of the first graph under the plan: weights rest as they do there, and gradients form the sets
  // that they form there.
  std::shared_ptr<const Skeleton> first;
  // Whether the step of the optimizer stands in the program; later graphs of a model use that of
  // the first one.
  bool step = true;
  int64_t set_bytes = 25 << 20;  // the most that a set of gradients takes which ranks sum
  // The graph is a module inside a hand-written model: backward takes a gradient of each result
  // that has one and gives those of the inputs that want one.
  bool embedded = false;
  Products products = {};  // which kernels make them
  bool sights = false;     // whether to collect them
  // Only costs are asked for: loops, which cost nothing, are not marked, and nothing is checked.
  bool priced = false;
};

// A call that executes again under autograd in backward, for want of a derivative rule.
struct Fallback {
  std::string op, module;
  SourceLoc loc;
};

struct Lowered {
  Program program;
  std::vector<Fallback> fallbacks;
  std::vector<std::string> notes;     // choices worth a line in the log, each once
  std::vector<std::string> warnings;  // of those, what the plan did not ask for
  AdapterCount adapters;
  std::vector<Sight> sights = {};  // where they are wanted
};

// Lowers for the one rank alone. Throws a model Error when the loss is not a scalar of a floating
// type, a plan Error when the plan does not fit the graph.
Lowered lower(const graph::Graph& graph, const Options& options = {});

}  // namespace nns::lower
