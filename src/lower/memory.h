// Memory of a Program, known before it runs: what it holds all the time, what a micro-batch keeps
// for its backward, and the most that its tensors take while a step runs.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "lower/program.h"
#include "lower/schedule/schedule.h"

namespace nns::lower {

// Bytes.
struct Memory {
  int64_t parameters = 0, gradients = 0, buffers = 0, constants = 0;
  int64_t saved = 0;  // between forward and backward of one micro-batch in one stage
  // The most at any time of tensors made by micro-batches, of activations that are sent until their
  // gradient comes, with casts of weights; samples and seeds not counted.
  int64_t peak = 0;
  int64_t host = 0;   // the most of activations that wait in memory of the host
  int in_flight = 0;  // the most micro-batches of a stage that wait for a backward at one time

  // The most at any time on the device; optimizer state not counted.
  int64_t total() const { return parameters + gradients + buffers + constants + peak; }
};

// What a part of a stage takes of one micro-batch, in bytes.
struct MemoryPart {
  // The most above what was there at its begin while instructions of a node run, by node.
  std::map<int, int64_t> tops = {};
  int64_t net = 0;    // what it leaves, less what it found
  bool last = false;  // nothing of the micro-batch stays in the stage afterwards
  int64_t saved = 0;  // of a forward: kept for the backward
  int64_t host = 0;   // what it leaves in memory of the host, less what it found

  int64_t rise() const;  // the most above what was there at its begin
};

// A program's memory before an order of its parts is known.
struct MemoryParts {
  int rank = 0;
  int64_t parameters = 0, gradients = 0, buffers = 0, constants = 0;
  int64_t casts = 0;  // of weights, there while micro-batches run
  std::vector<std::pair<int, SegmentKind>> sequence = {};  // stage and kind of its segments
  std::map<std::pair<int, SegmentKind>, MemoryPart> parts = {};
};
MemoryParts memory_parts(const Program& program);

// Bytes above what rests, while a part runs and behind it.
struct MemoryAt {
  int64_t top = 0, after = 0;
};
// Of each part in this order; of a part that the rank does not have as of those before.
std::vector<MemoryAt> course(const MemoryParts& parts, const std::vector<Action>& order);

// Memory while the rank runs the parts of its stages in this order (`Schedule::orders`); without
// one, all parts of one micro-batch after another. Throws a plan Error for a part that it does not
// have.
Memory memory(const MemoryParts& parts, const std::vector<Action>& order = {});
Memory memory(const Program& program, const std::vector<Action>& order = {});

}  // namespace nns::lower
