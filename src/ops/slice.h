// The position of a local tensor in the unsplit one, as runs of consecutive elements. No LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace nns::ops {

class Slice {
 public:
  // The whole tensor.
  explicit Slice(const Shape& shape) : Slice(shape, Shape(shape.size(), 0), shape) {}

  // `shape` elements that begin at `offset` of a tensor of shape `full`. Throws a plan Error when
  // they do not fit.
  Slice(const Shape& shape, const Shape& offset, const Shape& full) {
    const size_t rank = shape.size();
    bool fits = offset.size() == rank && full.size() == rank;
    for (size_t d = 0; fits && d < rank; ++d)
      fits = offset[d] >= 0 && shape[d] >= 0 && offset[d] + shape[d] <= full[d];
    if (!fits)
      fail(ErrorKind::plan, "[ops.slice] a slice of shape {} at {} is not inside a tensor of {}",
           to_string(shape), to_string(offset), to_string(full));
    // Dimensions that follow a whole one join it: what remains are outer dimensions and one run.
    int64_t stride = 1;
    for (size_t d = rank; d-- > 0;) {
      start_ += offset[d] * stride;
      if (strides_.empty() && (d + 1 == rank || joined_)) {
        run_ *= shape[d];
        joined_ = shape[d] == full[d];
      } else {
        extents_.insert(extents_.begin(), shape[d]);
        strides_.insert(strides_.begin(), stride);
      }
      stride *= full[d];
    }
    total_ = numel(shape);
  }

  int64_t numel_local() const { return total_; }
  // Runs of `run` elements, the first of which lie at start + outer index · strides of the unsplit.
  int64_t run() const { return run_; }
  int64_t start() const { return start_; }
  const std::vector<int64_t>& extents() const { return extents_; }
  const std::vector<int64_t>& strides() const { return strides_; }

  // Calls f(local index, index in the unsplit tensor, count) for the runs of [begin, end).
  template <class F>
  void for_each_run(int64_t begin, int64_t end, F&& f) const {
    while (begin < end) {
      const int64_t inner = begin % run_;
      int64_t outer = begin / run_, at = start_ + inner;
      for (size_t d = extents_.size(); d-- > 0;) {
        at += outer % extents_[d] * strides_[d];
        outer /= extents_[d];
      }
      const int64_t count = std::min(run_ - inner, end - begin);
      f(begin, at, count);
      begin += count;
    }
  }

 private:
  int64_t start_ = 0, run_ = 1, total_ = 0;
  bool joined_ = false;
  std::vector<int64_t> extents_, strides_;  // outer dimensions, outermost first
};

}  // namespace nns::ops
