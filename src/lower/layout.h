// Layout of one tensor over a list of devices: nnScaler's ⟨R, V, D…⟩ as a mesh of axes. Along an
// axis the tensor is replicated, a sum of addends (value), or cut along one dimension (split).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/types.h"

namespace nns::lower {

enum class AxisKind { replicate, value, split };

struct Axis {
  int size = 1;
  AxisKind kind = AxisKind::replicate;
  int dim = 0;                      // split only
  std::vector<int64_t> sizes = {};  // split only: of the parts, where they are given
  bool operator==(const Axis&) const = default;
};

// Half-open interval of element indices along one dimension.
struct Range {
  int64_t start = 0, stop = 0;
  int64_t length() const { return stop - start; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `parts` of a length: sizes differ by at most one, the longer ones first; parts
// beyond the length are empty.
Range part_of(Range whole, int index, int parts);
// The same where the parts have given sizes (unless there are none).
Range part_of(Range whole, int index, int parts, const std::vector<int64_t>& sizes);

// What one device holds: a box of the whole tensor, and which of how many addends.
struct Piece {
  std::vector<Range> box;
  int addend = 0, addends = 1;
  bool operator==(const Piece&) const = default;
};

// `devices` in row-major order over `axes` (the last axis varies fastest). Where several axes cut
// one dimension, the earlier axis makes the coarser cut.
struct Layout {
  std::vector<int> devices;
  std::vector<Axis> axes;

  // Whole copies on each device.
  static Layout replicated(std::vector<int> devices);

  int position_of(int device) const;  // in `devices`, or -1
  std::vector<int> coordinates(int position) const;
  Piece piece(const Shape& shape, int device) const;
  Shape local_shape(const Shape& shape, int device) const;
  bool has_value_axis() const;
  // Devices that differ from `device` in axis `axis` only, by coordinate.
  std::vector<int> group(int device, int axis) const;

  // Drops axes of size 1 and joins neighbours that mean one thing (replicate beside replicate).
  Layout simplified() const;
  bool operator==(const Layout&) const = default;
};

// True if every device holds the same piece of a tensor of this shape in both.
bool same_pieces(const Layout& a, const Layout& b, const Shape& shape);

// "⟨R2 V1 D0:4⟩ on 0-7"
std::string to_string(const Layout& layout);

// Rewrites both over one mesh: equal device order and axis sizes. Returns false if there is none
// (device sets differ, orders that no mesh explains, cuts that do not divide evenly).
bool align(Layout& a, Layout& b, const Shape& shape);

}  // namespace nns::lower
