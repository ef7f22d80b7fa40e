// Distribution: the layouts of a graph as one rank sees them: what rests on it, how weights are
// shared with other ranks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "lower/layouts.h"
#include "lower/program.h"

namespace nns::lower {

// How states of a parameter are cut beside the cuts of its uses: along dimension `dim` of the piece
// that is used here, among ranks whose gradients are addends of it.
struct Shard {
  int zero = 0;    // which states: plan::Zero
  Shape ranks;     // global, ascending
  int owner = -1;  // number of the rank that has all of it; -1: none
  int dim = 0;
  Range range;        // of the piece's `dim`, this rank's
  int64_t whole = 0;  // length of the piece's `dim`
};

// The dimension along which shards of a piece are cut: that which has least to be padded, the first
// of equals.
size_t shard_dim(const Shape& piece, int ranks);

// Where a parameter or buffer rests on a rank.
struct Home {
  OperandUse use;
  Share share;
  std::optional<Shard> shard;
};
using Homes = std::map<std::string, Home>;  // by name

class Distribution {
 public:
  // `rank` is global; `stage` one of those that run on its device. Weights stay in the homes that
  // an earlier graph of the plan gave them, if any.
  Distribution(std::shared_ptr<const Layouts> layouts, int rank, int stage,
               std::shared_ptr<const Homes> homes);

  const Layouts& layouts() const { return *layouts_; }
  bool planned() const { return layouts_->plan() != nullptr; }
  int device() const { return device_; }          // in the plan
  int first_rank() const { return first_rank_; }  // of the device's scale unit
  int stage() const { return stage_; }
  bool is_last() const { return stage_ == layouts_->last_stage(); }
  const std::vector<int>& devices() const { return layouts_->devices_of(stage_); }  // of the stage
  bool is_here(const graph::Node& node) const { return layouts_->stage_of(node) == stage_; }
  bool rests_here(int value) const { return layouts_->rests_in(value, stage_); }
  // The recompute region of a call: the plan's group where it has one, else that of the model, -1:
  // none. Groups of the plan and regions of the model have different numbers.
  int recompute_region(const graph::Node& node) const;

  // A value whole on every device of this stage.
  OperandUse whole() const { return layouts_->whole(stage_); }
  // How a parameter or buffer rests in this stage, and how its gradients are shared.
  OperandUse home(int value) const;
  Share share(int value) const;
  // Per stage that reads the value, this one first: global ranks that hold addends of the gradient
  // of this device's piece. `holders` gets the devices that hold the piece.
  std::vector<Shape> addends(int value, std::set<int>* holders) const;
  // Nothing where the plan leaves its states whole, or nobody else holds addends.
  std::optional<Shard> shard(int value) const;

 private:
  const Home* given(int value) const;  // by an earlier graph
  int owner(int value, int ranks) const;

  std::shared_ptr<const Layouts> layouts_;
  int device_ = 0, first_rank_ = 0, stage_ = 0;
  std::shared_ptr<const Homes> homes_;
};

}  // namespace nns::lower
