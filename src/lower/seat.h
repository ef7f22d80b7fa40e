// Seat: a rank in a plan: the stages that it runs, what rests on it, with whom it shares weights.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lower/distribution.h"

namespace nns::lower {

// Where an input, parameter, buffer or constant rests on a rank.
struct LeafPlace {
  OperandUse home;
  std::vector<Range> box;  // of the whole tensor
  std::optional<Shard> shard;
  Shape local_shape() const;
};

class Seat {
 public:
  // `lanes`: the layouts of each lane of the plan, of the first one without a plan; `homes` those
  // of an earlier graph for this rank, if any.
  Seat(const std::vector<std::shared_ptr<const Layouts>>& lanes, int rank,
       std::shared_ptr<const Homes> homes);

  int device() const { return stages_[0].device(); }
  int first_rank() const { return stages_[0].first_rank(); }
  const std::vector<Distribution>& stages() const { return stages_; }  // ascending, one at least
  // In the stage number `stage` of this rank; nothing where a weight or buffer is not there.
  std::optional<LeafPlace> place(size_t stage, int value) const;
  // In the first of its stages that has it; throws a plan Error where another one wants other
  // parts of it.
  std::optional<LeafPlace> place(int value) const;
  // How a parameter that rests here is shared.
  Share share(int value) const;
  // Those of all parameters and buffers that rest here.
  Homes homes() const;

 private:
  const Distribution* user(int value) const;

  const std::vector<std::shared_ptr<const Layouts>>& lanes_;
  std::vector<Distribution> stages_;
  std::shared_ptr<const Homes> given_;
};

}  // namespace nns::lower
