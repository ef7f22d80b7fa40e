// Distribution: where every value of a graph lies under a plan, as one stage on one device sees it.
// Without a plan, all of it on device 0.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "lower/adapter.h"
#include "lower/placement.h"
#include "lower/program.h"

namespace nns::lower {

// How a parameter that rests in shards is cut beside the cuts of its uses: along dimension `dim` of
// the piece that is used here, among the ranks whose gradients are addends of it.
struct Shard {
  Shape ranks;  // global, ascending
  int dim = 0;
  Range range;        // of the piece's `dim`, this rank's
  int64_t whole = 0;  // length of the piece's `dim`
};

// Where a parameter or buffer rests on this rank.
struct Home {
  OperandUse use;
  Share share;
  std::optional<Shard> shard;
};
struct Homes {
  std::map<std::string, Home> own;  // by name, of what rests on this rank
  plan::Resting rests;              // stages of all weights and buffers
};

class Distribution {
 public:
  // `rank` is global; `stage` one of those that run on its device. Weights stay in the homes that
  // an earlier graph of the plan gave them, if any.
  Distribution(const graph::Graph& graph, std::shared_ptr<const plan::Plan> plan, int rank,
               int stage, std::shared_ptr<const Homes> homes);

  // What the plan became for this graph: entries of its nodes, notes, warnings.
  const plan::Fitted& fitted() const { return fitted_; }
  bool planned() const { return plan_ != nullptr; }
  int device() const { return device_; }          // in the plan
  int first_rank() const { return first_rank_; }  // of the device's scale unit
  int units() const { return plan_ ? plan_->units() : 1; }
  int world() const { return plan_ ? plan_->runtime_ngpus : 1; }
  int stage() const { return stage_; }
  int last_stage() const { return last_stage_; }
  bool is_last() const { return stage_ == last_stage_; }  // the stage that returns loss and results
  const std::vector<int>& devices() const { return devices_of(stage_); }  // of this stage
  bool is_here(const graph::Node& node) const { return stage_of(node) == stage_; }
  // The recompute region of a call: the plan's group where it has one, else that of the model, -1:
  // none. Groups of the plan and regions of the model have different numbers.
  int recompute_region(const graph::Node& node) const;
  // Of a node of this stage; nullptr without a plan.
  const NodePlacement* placed(const graph::Node& node) const;

  // A value whole on every device of this stage.
  OperandUse whole() const { return {Layout::replicated(devices()), {false}}; }
  // How a parameter or buffer rests in this stage, and how its gradients are shared.
  OperandUse home(int value) const;
  Share share(int value) const;
  // Per stage that reads the value, this one first: global ranks that hold addends of the gradient
  // of this device's piece. `holders` gets the devices that hold the piece.
  std::vector<Shape> addends(int value, std::set<int>* holders) const;
  // Nothing where the plan leaves weights as they are used, or nobody else holds addends.
  std::optional<Shard> shard(int value) const;
  bool is_used_here(int value) const;
  // How a node of this stage makes its output number `i`.
  Layout made(const graph::Node& node, size_t i) const;

  // Stages that read a value of another one, ascending.
  std::vector<int> other_stages(int value) const;
  int producer_stage(int value) const;
  // How a value leaves the stage that makes it, and arrives in one that reads it.
  Layout departure(int value) const;
  Layout arrival(int value, int stage) const;
  // Number of the message that takes a value (or its gradient back) to a stage that reads it; alike
  // on all ranks.
  int64_t tag(int value, int stage, bool gradient) const;
  int tags() const { return static_cast<int>(crossings_.size()) * 2; }  // above all of them
  // Values that this stage gets from others, ascending.
  std::vector<int> arrivals() const;

  // What this rank sends or receives when a tensor goes from one layout to another: for each region
  // the other rank, then start and length in the local piece per dimension, all in one list.
  Shape sends(const Layout& from, const Layout& to, const Shape& shape) const;
  Shape receives(const Layout& from, const Layout& to, const Shape& shape) const;

  // Axes of more than one part along which a use gives addends of the gradient.
  static std::vector<int> partial_axes(const OperandUse& use);

 private:
  struct Use {
    int stage;
    OperandUse use;
  };

  const Home* given(int value) const;  // by an earlier graph
  int stage_of(const graph::Node& node) const {
    return plan_ ? fitted_.ops[static_cast<size_t>(node.id)].stage : 0;
  }
  const std::vector<int>& devices_of(int stage) const;
  const NodePlacement& placement(const graph::Node& node) const;
  const std::vector<Use>& uses(int value) const;
  OperandUse home_in(int value, int stage) const;
  // Global devices (of the plan) whose gradients are addends of one total, for a piece; sorted.
  std::vector<std::vector<int>> addend_groups(int value, int stage, const Piece& piece) const;
  void find_last_stage();
  void find_uses();

  const graph::Graph& graph_;
  std::shared_ptr<const plan::Plan> plan_;
  int device_ = 0, first_rank_ = 0, stage_ = 0, last_stage_ = 0;
  std::vector<int> alone_{0};
  plan::Fitted fitted_;  // empty without a plan
  std::shared_ptr<const Homes> homes_;
  mutable std::vector<std::optional<NodePlacement>> placements_;
  std::vector<std::vector<Use>> uses_;            // by value
  std::map<std::pair<int, int>, int> crossings_;  // (value, reading stage) → number
};

}  // namespace nns::lower
