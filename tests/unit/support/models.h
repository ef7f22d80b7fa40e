// Models of the plan tests, written as text, and what two ways to run one must agree on.
#pragma once

#include <memory>
#include <vector>

#include "support/interpreter.h"

namespace nns::test {

using GraphPtr = std::shared_ptr<const graph::Graph>;

// Blocks h.0 … of norm, linear, gelu and linear with a residual; the embedding's table is the
// head's weight too; cross entropy. Tokens are [4, 2].
GraphPtr perceptrons(int blocks, bool training = true);
// The same with causal attention of two heads and dropout.
GraphPtr transformer(int blocks);
// Convolution, batch norm with running statistics, two linear layers; mean squared error, and the
// predictions as a second result.
GraphPtr convolutions(bool training = true);
// Blocks h.0 … of linear, relu, linear, relu: what enters a block has the name of what it makes.
GraphPtr alike(int blocks);
// Four linear layers of widths 8, 6, 10, 4, 8, a sine and a sum.
GraphPtr linears();
// Linear layers of these widths and a sum, without the sine that `linears()` has before it.
GraphPtr linears(const std::vector<int>& widths);
// What a list of pipelines and cuts seldom has: a tensor that is cut, joined, reduced, indexed and
// expanded, a constant mask, a calculation on weights alone, one without gradient, and a weight
// that nobody reads.
GraphPtr oddities();

// What differs between two outcomes beyond rounding, or nothing. A gradient that one has not is
// zero.
std::string difference(const Outcome& want, const Outcome& got, double tolerance = 1e-12);

// What differs between the messages that the interpreter counted and what `traffic` says of the
// Programs, or nothing.
std::string miscounted(const Programs& programs, const Outcome& got);
// The same of the memory that it measured and `memory`. Exact where no reshape has to copy and no
// join has its parts side by side.
std::string unmeasured(const Programs& programs, const Outcome& got);

}  // namespace nns::test
