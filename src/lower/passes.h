// Passes over a Program, in the order in which `lower` runs them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

// Takes out views that change nothing, joins reshapes of reshapes, and makes a view once that calls
// of one repeated block ask for several times.
// Returns which slots others stand for now.
std::map<int, int> fold_views(Program& program);
// Removes calls whose results nobody reads, last segment first. `unsent` are slots that another
// rank of the stage sends on in this rank's place: calls that make them are removed too, except the
// collectives among them, which the other ranks enter and would wait in.
void remove_dead_calls(Program& program, const std::vector<int>& unsent);
// Puts sums and the normalisations beside them into one call, where a record names it.
void fuse_sums(Program& program, const std::string& device);
// Whether a call is a sum in which no addend is multiplied by a number other than 1.
bool is_plain_sum(std::string_view op, const std::vector<NamedArg>& args);
// Casts a weight to another dtype once a step, for all its micro-batches; a weight that rests in
// shards before it is gathered, where nobody reads it in its own dtype.
void cast_once(Program& program);
// Gathers the shards of a weight anew where a later segment reads what an earlier one gathered, so
// that no whole weight is kept between them.
void gather_again(Program& program);
// Calls by which slots of a segment can be made again.
using Remakes = std::map<int, Instr>;
// Makes the slots anew that the segment reads, in front of their first readers.
void read_again(Program& program, const Remakes& calls, Segment& segment);
// Keeps what calls of these graph nodes make for backward in memory of the host.
void offload(Program& program, const std::vector<bool>& nodes, const std::string& device);
// Puts the scatters of a repeated block's gradients over the same ranks into one call each, of so
// many bytes at most (or one gradient).
void join_scatters(Program& program, int64_t bytes);
// Sets what each segment hands to later ones: slots made (or got) in one and read in another.
void find_saved(Program& program);
// Lets sums of gradients write into an addend that nobody else reads, and marks gradients that an
// accumulation may keep instead of copying.
void reuse_memory(Program& program);
// Marks runs of repeated blocks by module path ("h.0", "h.1", …).
void find_blocks(Program& program);
// Inserts a release after the last use of every tensor that a segment owns; inside repeated blocks
// only where every instance does. Releases that free nothing yet, since a view of the same memory
// lives on, wait for the one that does: fewer and longer lines, the same peak.
void insert_releases(Program& program);
// Marks where gathers of the next repeated block's weights begin.
void gather_ahead(Program& program);
// Marks loops: instructions that repeat beside and inside of the blocks, such as unrolled time
// steps.
void find_loops(Program& program);

// Proves one rank's Program well formed; throws an internal Error that names segment, instruction
// and slot: use before definition, use after release, a released input or parameter, a saved value
// that is missing, a parameter whose gradient is accumulated without a use, blocks that overlap.
void check(const Program& program);

}  // namespace nns::lower
