// Where gradients lie: the sets that are summed together, where in backward their sums may start,
// and which products are written in their place.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lower/lower.h"

namespace nns::lower {

// Names of the parameters from which a path of gradients leads to what is differentiated: the loss,
// or with `embedded` any result.
std::set<std::string> reached_by_gradients(const graph::Graph& graph, bool embedded);

// The gradients of a program. Those that are summed over ranks: sets of at most `bytes` (or one
// gradient), in the order in which backward completes them; in pipelines in that of the parameters,
// which stages that share weights agree on. Where ranks that meet run different programs (not
// `alike`), by ranks. Then those of which only other graphs have gradients, and those that are
// summed nowhere.
//   reached: parameters that some rank may have a gradient of
//   trainable: all that an optimizer may be asked to update
std::vector<GradientSet> gradient_sets(const Program& program, int64_t bytes,
                                       const std::set<std::string>& reached,
                                       const std::set<std::string>& trainable, bool alike);
// The sets of the first graph's program, for another graph of the same model.
std::vector<GradientSet> gradient_sets_of(const Program& first, const Program& program);

// A Program of a step alone, for parameters outside of any graph; ids of slots are not told.
Program step_alone(std::string model, std::vector<Slot> parameters, std::vector<Share> shares);

// Marks in backward where sums may start. Not for ranks that run different programs, nor where no
// backward knows that it is the last (embedded).
void mark_sums(Program& program);
// Lets products that become gradients as they are be written where the gradient lies.
void write_in_place(Program& program);

}  // namespace nns::lower
