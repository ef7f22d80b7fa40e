// Duration: seconds that a Program takes on described hardware, instruction by instruction, and the
// step of a plan from them. Communication and calls follow one another, as the program has them.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cost/hardware.h"
#include "cost/profile.h"
#include "lower/memory.h"
#include "lower/schedule/schedule.h"
#include "lower/skeleton.h"
#include "lower/storage.h"

namespace nns::lower {

// Seconds of work on the device and of communication; of both, how many are of which origin.
struct Seconds {
  double work = 0, communication = 0;
  std::array<double, 3> by_origin = {};  // by cost::Origin

  double all() const { return work + communication; }
  void operator+=(const Seconds& more) {
    work += more.work;
    communication += more.communication;
    for (size_t i = 0; i < by_origin.size(); ++i) by_origin[i] += more.by_origin[i];
  }
};

// Of one instruction: a call by its record's flops and the bytes of its operands and results, a
// collective by its group. A message counts with its sender. A view takes nothing; where it has to
// copy, it counts in forward, not in backward, where that hangs on all readers of a value. Where
// the hardware has a profile, calls and collectives take what that says of them or of others like
// them.
Seconds seconds_of(const Program& program, const Storage& storage, SegmentKind kind,
                   const Instr& instr, const cost::Hardware& on);
// What the model of a call counts; nothing for a view.
struct Work {
  double flops = 0;
  int64_t bytes = 0, largest = 0;  // that it reads and writes; elements of its largest tensor
  DType dtype = DType::f32;
};
Work work_of(const Program& program, const Storage& storage, SegmentKind kind, const Instr& instr);
// Of a collective, by the profile where there is one; `whole` is the whole tensor.
double collective_seconds(operators::Communication kind, const TensorType& whole,
                          const std::vector<int>& ranks, const cost::Hardware& on);
// Of adding a gradient of this type to that of a weight.
double accumulate_seconds(const TensorType& type, const cost::Hardware& on);

// What a step needs beside the programs.
struct StepSettings {
  int micro_batches = 1;            // of a unit
  int64_t bucket_bytes = 25 << 20;  // gradients that one all-reduce sums
  double state = 2;                 // bytes that the optimizer keeps for each byte of a weight
  std::string optimizer = "";       // its name, by which a profile knows what its step takes
};

// Of what rests on a rank, once a step: sum of the gradient over the ranks that hold addends, and
// update of the weight; of a whole program with its casts.
struct StepPart {
  double sum = 0, update = 0;
};
StepPart step_part(const TensorType& weight, const std::vector<int>& reduce,
                   const cost::Hardware& on, const StepSettings& settings);

// What the instructions of one call of the graph take in one stage, of a micro-batch: its work
// under the call's name, communication under that of the collective.
struct Spent {
  int stage = 0, node = -1;  // node -1: of no call, as the sum of addends of a gradient
  std::string op;
  bool communication = false;
  double forward = 0, backward = 0;  // seconds
  double interpolated = 0;           // seconds of those that others like them were measured for
  double modelled = 0;               // and of those of which nothing was
  int instrs = 0;
};

// What a rank spends and holds; `ranks` of them share its lowering.
struct RankAccount {
  int rank = 0, ranks = 1;
  Memory memory = {};
  int64_t state = 0;                  // bytes of the optimizer
  std::vector<Spent> spent = {};      // in order of stage, node, name
  int row = 0;                        // of StepCost::line
  std::vector<MemoryAt> course = {};  // of each part there
};

// A step of a plan.
struct StepCost {
  Seconds forward, backward;  // of a micro-batch; summed over stages
  StepPart once;              // of the rank that takes longest
  double seconds = 0;
  // Bytes of the rank that takes most: what rests (optimizer included), what a micro-batch keeps
  // for its backward, and the most at any time.
  int64_t resting = 0, saved = 0, total = 0;
  // When each part of each pipeline rank runs, sums and updates left out; seconds.
  std::vector<std::vector<Timed>> line;
  std::vector<RankAccount> ranks;  // one of each class
};

// What the programs of ranks that share a lowering take, before a schedule puts it together.
struct ClassCost {
  std::vector<int> ranks;
  std::map<std::pair<int, SegmentKind>, Seconds> parts = {};  // by stage
  StepPart once = {};
  MemoryParts memory = {};
  int64_t updated = 0;            // bytes of weights whose optimizer state it has
  std::vector<Spent> spent = {};  // as in RankAccount
};
// Of all classes of ranks. Throws as lowering does.
std::vector<ClassCost> class_costs(const Skeleton& skeleton, const cost::Hardware& on,
                                   const StepSettings& settings);
// A step from them, under the plan's schedule.
StepCost step_cost(const std::vector<ClassCost>& classes, const plan::Plan& plan,
                   const StepSettings& settings);

// Simulates a step by the programs of all classes of ranks. Throws as lowering does.
StepCost simulate(const Skeleton& skeleton, const plan::Plan& plan, const cost::Hardware& on,
                  const StepSettings& settings);

}  // namespace nns::lower
