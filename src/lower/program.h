// Program: the instruction list of one rank. What simulate draws, check proves and codegen writes.
// Named segments are flat lists of instructions on local tensors; a schedule says which segment
// runs on which micro-batch in which order. Micro-batches are never unrolled, and repeated blocks
// are marked here.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "lower/layout.h"
#include "lower/schedule/schedule.h"
#include "lower/step.h"
#include "plan/plan.h"

namespace nns::lower {

using graph::Arg;
using graph::NamedArg;
using graph::ValueRef;

// A cast is that of a parameter to another dtype, which all micro-batches of a step read.
enum class SlotRole { input, parameter, buffer, constant, cast, activation, gradient };

// A local tensor of the rank. Static single assignment inside the program.
struct Slot {
  int id = 0;
  TensorType type;  // local shape
  SlotRole role = SlotRole::activation;
  std::string name;  // logical name (parameter, buffer) or input field; else a hint for codegen
  // Of parameters and buffers of which the rank holds a part: the whole shape and the part's place.
  Shape whole;
  std::vector<Range> box;
  // Of parameters whose gradient rests in a shard although they do not: its shape.
  Shape gradient = {};
};
// Addends of gradients of 16-bit weights are summed in float32, over micro-batches and ranks.
inline DType gradient_dtype(DType weight) {
  return weight == DType::bf16 || weight == DType::f16 ? DType::f32 : weight;
}
inline TensorType gradient_type(const Slot& parameter) {
  return {parameter.gradient.empty() ? parameter.type.shape : parameter.gradient,
          gradient_dtype(parameter.type.dtype)};
}

// How a parameter is shared between ranks.
struct Share {
  // Global ranks whose gradients, as they rest, are addends of it; empty: this one only.
  std::vector<int> reduce;
  int holders = 1;  // ranks that hold the same part of the gradient once it is summed
  // What rests in shards (plan::Zero), over which ranks, along which dimension of the piece that is
  // used here, and how long that is. All of it is with one of them, counted in `over`, where
  // `owner` says so.
  int zero = 0;
  std::vector<int> over;
  int dim = 0;
  int64_t length = 0;
  int owner = -1;
  bool scatter = false;  // the step scatters the gradient over them

  bool sharded() const { return zero == plan::Zero::weights; }
  // Whether the gradient of a micro-batch is summed over them as soon as it is there.
  bool scattered() const { return zero >= plan::Zero::gradients; }
  // What rank number `i` of `over` has along `dim`.
  Range part(int i) const;
};

enum class InstrKind {
  call,        // outs = op(args)
  release,     // args: slots never used again
  accumulate,  // adds args[0] to the gradient of parameter slot `target`
  update,      // buffer slot `target` takes args[0] at the end of the step (order of micro-batch)
};

struct Instr {
  InstrKind kind = InstrKind::call;
  std::string op;              // as in graph::Node
  std::vector<NamedArg> args;  // ValueRef ids are slot ids
  std::vector<int> outs;       // slot ids; -1: result not wanted
  int target = -1;             // accumulate, update
  int into = -1;  // call: parameter slot, in whose gradient's place the first addend is made
  int node = -1;  // graph node it comes from
  std::string module;
  SourceLoc loc;
};

// Marks that instrs [first, last) are one run of the repeated block `body`: instances of one body
// are equal up to slot names and module index, and become one generated function.
struct BlockRun {
  int body = 0;
  size_t first = 0, last = 0;
  std::string path;  // module path of this instance: "transformer.h.3"
};

// Marks that instrs [first, first + size * count) are `count` turns of one loop, each of `size`
// instructions: equal up to slot names, and to numbers that grow evenly from turn to turn. A slot
// that a turn reads was made in the same turn, in the turn before or outside of the loop.
struct Loop {
  size_t first = 0, size = 0, count = 0;
  size_t last() const { return first + size * count; }
};

// Gradients of one dtype that are summed over the same ranks: neighbours in one flat storage, in
// this order. Those that are summed nowhere form sets too, of separate tensors.
struct GradientSet {
  std::vector<int> ranks;       // global; empty: no sum
  std::vector<int> parameters;  // slots
  // Ranks among which states of its weights are cut, which of them are (plan::Zero), and whether
  // its sum is scattered over them first.
  std::vector<int> over;
  int zero = 0;
  bool scatter = false;
  bool late = false;  // summed where other graphs have gradients of it: this one has none
};

// A place in backward at which all gradients of the sets up to `set` have their last addends.
struct SumStart {
  size_t after = 0;  // so many instructions of the segment; outside of blocks
  int set = 0;       // of Program::sets
};

// A place in a segment at which the gathers of a repeated block's weights begin, ahead of it: where
// they are called they end.
struct Ahead {
  size_t after = 0;  // so many instructions of the segment; outside of blocks
  size_t block = 0;  // of Segment::blocks
};

// What a segment does of its stage's work. Where weight gradients are apart, `backward` makes those
// of activations and `weight` the rest.
enum class SegmentKind { forward, backward, weight };
// F, B or W, as in actions of a schedule.
inline char letter_of(SegmentKind kind) {
  return "FBW"[static_cast<size_t>(kind)];
}

struct Segment {
  std::string
      name;  // "forward", "backward", "weight"; of the device's further stages "forward1", …
  SegmentKind kind = SegmentKind::forward;
  int stage = 0;
  std::vector<int> inputs;               // sample fields and, for backward, the seed
  std::vector<int> outputs;              // what the caller gets
  std::vector<int> saved_in, saved_out;  // tensors handed on to later segments of a micro-batch
  std::vector<Instr> instrs;
  std::vector<BlockRun> blocks;  // disjoint, ascending
  std::vector<Loop> loops;       // disjoint, ascending, each inside of one block or of none
  std::vector<SumStart> sums;    // ascending; none where sums wait for the end of the step
  std::vector<Ahead> ahead;      // ascending
};

struct Program {
  int rank = 0, world = 1;
  std::string model;
  uint64_t graph_hash = 0;
  bool training = true;
  std::vector<Slot> slots;
  std::vector<int> parameters, buffers, constants;  // slot ids
  std::vector<std::string> constant_data;           // elements of each constant, as in graph::Value
  std::vector<Instr> casts;       // of parameters: run once a step, before its first micro-batch
  std::vector<Share> shares;      // of each parameter; empty on one rank
  std::vector<GradientSet> sets;  // of all gradients, in the order of their sums
  OptimizerStep step;  // of the first training graph; empty in others, which use that one
  std::vector<Segment> segments;  // stage after stage: forward, backward, weight
  int last_stage = 0;             // the one that returns loss and results
  int tags = 0;                   // messages between stages have tags below it, times micro-batches
  // What the rank runs in a step of `micro_batches`, in order; with one stage that of the first
  // micro-batch, which the others repeat.
  std::vector<Action> schedule;
  int micro_batches = 1;
  std::vector<graph::Nest> outputs;  // nested results of forward on slot ids
  // Of a module inside a hand-written model: what backward takes for each result ("1", "2.h.0") and
  // gives for each input, as (name, slot). Keys of random numbers begin with the module's path.
  bool embedded = false;
  std::vector<std::pair<std::string, int>> seeds, input_gradients;

  // Whether the segment returns `outputs`: the forward of the last stage that makes a result.
  bool returns(const Segment& segment) const {
    return segment.kind == SegmentKind::forward && segment.stage == last_stage;
  }

  const Slot& slot(int id) const { return slots.at(static_cast<size_t>(id)); }
};

// Groups of ranks that the program's collectives and sums of gradients need, in the one order in
// which all ranks make them.
std::vector<std::vector<int>> groups_of(const Program& program);

std::string to_text(const Program& program);
std::string to_json(const Program& program);
uint64_t hash(const Program& program);

}  // namespace nns::lower
