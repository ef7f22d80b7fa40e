// The step of an optimizer on one rank, as a Program of its own: what happens to the states of its
// parameters (weight, gradient, slots of the optimizer) once backward of all micro-batches is done.
// The factor, the greatest norm and the learning rate are arguments of its parts.
#pragma once

#include <string>
#include <vector>

namespace nns::lower {

struct Program;

enum class StepKind {
  scatter,  // adds the gradients of a set over ranks, of which each keeps its shards
  sum,      // adds them over ranks, in place
  scale,    // multiplies them by the factor
  norm,     // adds their squares to those of all gradients
  clip,     // scales them where the norm is too large
  update,   // updates their weights
  gather,   // weights that were updated in shards are gathered over ranks: here, or where they rest
            // in shards by programs, before they are used
};

struct StepInstr {
  StepKind kind = StepKind::sum;
  int set = 0;             // of Program::sets
  std::vector<int> ranks;  // scatter, sum, gather
  int holders = 1;         // norm: takes the gradients that so many ranks hold, each for 1/holders
};

// Instructions in order; those of one kind stand together, so that each kind can be run alone.
using OptimizerStep = std::vector<StepInstr>;

// The step over the sets of a program.
OptimizerStep make_step(const Program& program);

// Proves the sets of a program, where their sums start, and its step, if it has one, well formed;
// throws an internal Error that names set and instruction: a gradient summed twice, never, over
// other ranks than have its addends, or before its last one; one that is not scattered where it
// rests in shards, or after its sum; one that is scaled before its sum, or not; one that counts
// twice in the norm; clipping without the whole norm; an update that comes before any of these,
// twice, or never; shards that nobody gathers.
void check_step(const Program& program);

// One line an instruction.
std::string to_text(const OptimizerStep& step);
std::string_view name_of(StepKind kind);

}  // namespace nns::lower
