// Search: dynamic programming over frontiers. Plans that leave the same frontier differ in nothing
// that follows, so of those only the ones that no other beats are kept: the fastest, or, under a
// limit of memory, all that are fastest for what they hold.
//
// The graph is taken segment by segment. What a segment makes of a frontier is found once and holds
// for every segment of the same steps, so the layers of a model cost one of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "solve/frontier.h"

namespace nns::solve {

struct Limits {
  // Bytes of what rests and what a micro-batch keeps; nothing: only time counts.
  std::optional<int64_t> memory = {};
  // Seconds that a byte is worth, where no limit is given: small plans for less time. Bytes at rest
  // count, and those that a micro-batch keeps as often as `in_flight` says.
  double price = 0;
  double in_flight = 0;
  int zero = plan::Zero::none;  // level at which weights rest in shards
  size_t labels = 400'000;      // partial plans that are looked at before the search is thinned
  size_t beam = 200;            // of a thinned search, partial plans between calls
  bool exact = false;           // a search that would be thinned is given up
};

// The choices of a plan: a candidate of each step of the sequence.
struct Found {
  std::vector<uint8_t> candidates;
  double seconds = 0;                // of a step
  int64_t resting = 0, saved = 0;    // bytes, where a limit was given
  bool exact = true;                 // no plan of the space is faster within the limit
  size_t labels = 0, frontiers = 0;  // partial plans looked at; most frontiers at one place
};

// Nothing where no plan keeps the limit, none was found by a thinned search, or it was given up.
std::optional<Found> search(const Space& space, const Limits& limits);

// All plans that no other beats in time and in bytes, from the fastest on; none where nothing keeps
// the limit, or the search was given up.
std::vector<Found> search_all(const Space& space, const Limits& limits);

// A plan of the space, step by step: what each adds, and what is alive before it.
struct Trace {
  std::vector<Added> steps;
  std::vector<Frontier> before;
};
// Nothing where the candidates are no plan.
std::optional<Trace> trace(const Space& space, const std::vector<uint8_t>& candidates,
                           int zero = plan::Zero::none);

// What a plan of the space costs, candidate by candidate; nothing where it chooses no plan.
std::optional<Added> price(const Space& space, const std::vector<uint8_t>& candidates,
                           int zero = plan::Zero::none);

// Fewest bytes that a plan of the space can rest in, by the weights alone.
int64_t least_resting(const Space& space, int zero = plan::Zero::none);

}  // namespace nns::solve
