// Pipeline schedules: in which order each pipeline rank runs the forward (F), backward (B) and, for
// zero-bubble schedules, weight-gradient (W) parts of its stages on the micro-batches of a step.
//
// Sources: GPipe (Huang 2019); 1F1B and interleaved 1F1B (Narayanan 2021); Chimera (Li, Hoefler
// 2021); ZB-H1 (Qi 2023), ZBV (Qi 2024).
#pragma once

#include <string>
#include <vector>

namespace nns::lower {

struct Action {
  char kind = 'F';  // F, B, W; without W, B computes both gradients
  int stage = 0, micro = 0;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int ranks = 1, stages = 1, micros = 1;
  bool split_backward = false;  // weight gradients apart (W)
  bool training = true;
  std::vector<std::vector<int>> placement;  // [stage][micro % period] → pipeline rank
  std::vector<std::vector<Action>> orders;  // per pipeline rank
  // Of each stage the ranks that run its parts together, each at one time; empty: no stage has
  // several.
  std::vector<std::vector<int>> together;

  int rank_of(int stage, int micro) const {
    const auto& row = placement[static_cast<size_t>(stage)];
    return row[static_cast<size_t>(micro) % row.size()];
  }
  // All ranks that run a part of a stage.
  std::vector<int> ranks_of(int stage, int micro) const {
    return together.empty() ? std::vector<int>{rank_of(stage, micro)}
                            : together[static_cast<size_t>(stage)];
  }
};

// Names that `make_schedule` knows: gpipe, 1f1b, 1f1b_interleaved, chimera, zb_h1, zbv, infer.
const std::vector<std::string>& schedule_names();

// Returns the named schedule for p pipeline ranks and m micro-batches; `chunks` stages a rank for
// 1f1b_interleaved. Throws a plan Error with both numbers where a schedule cannot do with them.
Schedule make_schedule(const std::string& name, int ranks, int micros, int chunks = 1);

// Throws a plan Error that names rank, stage and micro-batch unless every part runs exactly once,
// on the rank where its stage lives, in an order that never waits for itself.
void check(const Schedule& schedule);

// Seconds (or units) of one part of one stage.
struct StageTimes {
  double forward = 1, backward = 1, weight = 1;
};

// When each action of each rank starts and stops under free links; as `orders`.
struct Timed {
  Action action;
  double start = 0, stop = 0;
};
// One StageTimes a stage, or one for all. Without split_backward a B takes backward + weight.
std::vector<std::vector<Timed>> time_line(const Schedule& schedule,
                                          const std::vector<StageTimes>& times);

}  // namespace nns::lower
