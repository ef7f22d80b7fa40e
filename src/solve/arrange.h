// Arrangement: what of a plan is no cut of a call: stages and their schedule, what of the weights
// rests in shards, and how much of the blocks runs again in backward. Divided and estimated by the
// costs that the search gives each step; the simulator has the last word.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lower/schedule/schedule.h"
#include "solve/search.h"

namespace nns::solve {

struct Arrangement {
  std::vector<uint8_t> candidates;  // of each step of the sequence
  std::vector<size_t> begins = {};  // places where the stages behind the first begin
  std::string schedule = "1f1b";
  int chunks = 1;  // stages of a pipeline rank
  int zero = plan::Zero::none;
  double recompute = 0;  // part of each stage's blocks that run again in backward
  auto operator<=>(const Arrangement&) const = default;
};

plan::Plan plan_of(const Space& space, const Arrangement& arrangement, const std::string& policy);

// Blocks that run again, each as the places of its steps: of the blocks of each stage so many of
// the first.
std::vector<std::vector<size_t>> again(const Space& space, const Arrangement& arrangement);

// Costs by place of the sequence, of one choice of candidates and one level of shards.
class Table {
 public:
  Table(const Space& space, const std::vector<uint8_t>& candidates, const Trace& trace);

  // What a stage of these places takes.
  struct Stage {
    double forward = 0, backward = 0;  // seconds of a micro-batch
    double gathers = 0;                // of forward, those of weights in shards
    double once = 0;                   // of a step beside
    int64_t resting = 0, saved = 0;
  };
  Stage stage(size_t begin, size_t end) const;
  // Seconds that a cut before a place takes for messages of a micro-batch, there and back.
  double message(size_t place) const { return message_[place]; }
  // Places where a stage may begin, ascending: all, or those that begin at one of these nodes.
  std::vector<size_t> places(const std::vector<int>& only) const;
  // Those of `places` where less has to pass than near them; some for each of so many stages.
  std::vector<size_t> cheapest(const std::vector<size_t>& places, size_t stages) const;
  // Bytes that the call of a place has at least beside what is kept, and those that enter a place.
  int64_t top(size_t place) const { return top_[place]; }
  int64_t entering(size_t place) const { return entering_[place]; }
  size_t size() const { return message_.size(); }
  const Space& space() const { return space_; }

 private:
  const Space& space_;
  std::vector<Stage> sums_;  // of the steps before a place
  std::vector<double> message_;
  std::vector<int64_t> top_, entering_;
};

// A step by the table: seconds by the schedule's time line, bytes that the rank which takes most
// has at least when backward is at its dearest call.
struct Estimate {
  double seconds = 0;
  int64_t bytes = 0;
  double bubble = 0;   // part of the time line in which a rank waits, on average
  double balance = 1;  // shortest of the stages to the longest
};
Estimate estimate(const Table& table, const Arrangement& arrangement,
                  const lower::Schedule& schedule);

// Divides the sequence into the stages of a schedule so that the longest stage is as short as
// possible and every rank keeps `memory`; nothing where no division does.
std::optional<std::vector<size_t>> divide(const Table& table, const lower::Schedule& schedule,
                                          const std::vector<size_t>& places,
                                          std::optional<int64_t> memory);

}  // namespace nns::solve
