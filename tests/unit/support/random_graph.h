// Graphs drawn at random for the tests of the planner, and all plans of a small space.
#pragma once

#include <random>

#include "solve/frontier.h"
#include "support/models.h"

namespace nns::test {

using Candidates = std::vector<uint8_t>;

// A graph of so many calls on [8, 8]; weights may be read twice, and values by several calls.
GraphPtr random_graph(std::mt19937& random, int calls);

// Ways to run the step at a place of the sequence; all plans.
size_t candidates_at(const solve::Space& space, size_t place);
double count_choices(const solve::Space& space);
Candidates random_choice(const solve::Space& space, std::mt19937& random);

struct Priced {
  double seconds;
  int64_t bytes;  // at rest and kept
};
// Every plan, one call after another, without any of the search's shortcuts.
std::vector<Priced> all_plans(const solve::Space& space, int zero = plan::Zero::none);

}  // namespace nns::test
