// lower: a Graph becomes the Program of a rank: forward calls rewritten to operators with
// derivative rules, the backward pass beside them, what is kept between both, and the last use of
// every tensor.
#pragma once

#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Options {
  std::string device = "cpu";
};

// A call that executes again under autograd in backward, for want of a derivative rule.
struct Fallback {
  std::string op, module;
  SourceLoc loc;
};

struct Lowered {
  Program program;
  std::vector<Fallback> fallbacks;
  std::vector<std::string> notes;  // choices worth a line in the log, each once
};

// Throws a model Error when the loss is not a scalar of a floating type.
Lowered lower(const graph::Graph& graph, const Options& options = {});

}  // namespace nns::lower
