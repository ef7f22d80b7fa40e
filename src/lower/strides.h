// Where the elements of each slot lie: in which memory, and by which strides. Storage is the
// coarser account that passes go by; this one knows when a reshape copies, and which results of one
// call share memory, so that memory is told to the byte.
#pragma once

#include <optional>
#include <vector>

#include "lower/program.h"

namespace nns::lower {

class Strides {
 public:
  explicit Strides(const Program& program);

  // The slot that stands for the memory in which `slot` lies.
  int root(int slot) const { return places_[static_cast<size_t>(slot)].root; }
  int64_t bytes(int root) const { return bytes_[static_cast<size_t>(root)]; }

 private:
  struct Place {
    int root = 0;
    std::optional<Shape> strides = {};  // nothing: not known
    int64_t offset = 0;                 // in elements
  };

  void see(const Instr& instr);
  bool see_laid(const Instr& instr);
  void see_call(const Instr& instr, const std::vector<int>& in);
  bool join(const Instr& instr, const std::vector<int>& in);
  Place viewed(const Instr& instr, size_t index, int from) const;
  const TensorType& type(int slot) const { return program_.slot(slot).type; }

  const Program& program_;
  std::vector<Place> places_;
  std::vector<int64_t> bytes_;  // by root
};

// Strides of a row-major tensor.
Shape row_major(const Shape& shape);
// Strides by which the same elements have another shape without moving; nothing where they must.
std::optional<Shape> reshaped(const Shape& shape, const Shape& strides, const Shape& to);

}  // namespace nns::lower
