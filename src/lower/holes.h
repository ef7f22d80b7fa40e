// Holes: the numbers of a Program that every rank of a class has its own of: ranks of groups, peers
// of messages, starts of slices, offsets of draws. A reserved integer stands in their place, in
// lists too; what happens to be computed from one is found out when the Program is filled in.
#pragma once

#include <vector>

#include "lower/program.h"

namespace nns::lower {

struct Hole {
  // `number` stands for itself; the others are the only entry of a list: `list` as it is, `ranks`
  // of devices that become ranks, `moves` where the first of each 1 + 2·dims entries does.
  enum class Kind { number, list, ranks, moves };
  Kind kind = Kind::number;
  size_t dims = 0;
  std::vector<Shape> values;  // by Holes::devices
  auto operator<=>(const Hole&) const = default;
};

struct Holes {
  std::vector<int> devices;  // of the plan
  std::vector<Hole> list;
};

// The integer that stands for hole number `index`.
int64_t mark_of(size_t index);

// Puts a device's numbers in place of all marks; devices become ranks from `first_rank` on. Throws
// an internal Error for a number that was computed from a mark.
void fill(Program& program, const Holes& holes, int device, int first_rank);

// Of each device which arguments of one operator are equal to each other once they are filled in,
// as classes in order of occurrence. Where that differs from the Program with marks, passes that
// compare instructions would have found something else.
struct Pattern {
  std::vector<std::vector<int>> by_device;  // as Holes::devices
  std::vector<int> marked;
};
Pattern pattern_of(const Program& program, const Holes& holes);

}  // namespace nns::lower
