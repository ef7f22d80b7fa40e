// Layouts: where every value of a graph lies under a plan, on all devices at once: how each
// operator is placed, who uses what, what crosses from stage to stage. Without a plan, all on
// device 0.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "lower/placement.h"
#include "plan/plan.h"

namespace nns::lower {

class Layouts {
 public:
  // Keeps a reference to the graph. `rests`: where weights rest by the first graph of the plan.
  // Throws a plan Error where the plan does not fit the graph.
  Layouts(const graph::Graph& graph, std::shared_ptr<const plan::Plan> plan,
          const plan::Resting* rests);
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;

  struct Use {
    int stage;
    OperandUse use;
  };

  const graph::Graph& graph() const { return graph_; }
  const plan::Plan* plan() const { return plan_.get(); }
  // What the plan became for this graph: entries of its nodes, notes, warnings.
  const plan::Fitted& fitted() const { return fitted_; }
  int units() const { return plan_ ? plan_->units() : 1; }
  int world() const { return plan_ ? plan_->runtime_ngpus : 1; }
  int last_stage() const { return last_stage_; }  // the one that returns loss and results
  int stage_of(const graph::Node& node) const {
    return plan_ ? fitted_.ops[static_cast<size_t>(node.id)].stage : 0;
  }
  const std::vector<int>& devices_of(int stage) const;
  // A value whole on every device of a stage.
  OperandUse whole(int stage) const { return {Layout::replicated(devices_of(stage)), {false}}; }
  // nullptr without a plan.
  const NodePlacement* placed(const graph::Node& node) const {
    return plan_ ? &placements_[static_cast<size_t>(node.id)] : nullptr;
  }
  // How a node makes its output number `i`.
  Layout made(const graph::Node& node, size_t i) const;

  const std::vector<Use>& uses(int value) const { return uses_[static_cast<size_t>(value)]; }
  // Whether a parameter or buffer rests in a stage.
  bool rests_in(int value, int stage) const;
  // How a parameter or buffer rests in a stage.
  OperandUse home(int value, int stage) const;
  // Devices of a stage whose gradients are addends of one total, for a piece of a weight; sorted.
  std::vector<std::vector<int>> addend_groups(int value, int stage, const Piece& piece) const;

  // Stages that read a value of another one, ascending.
  std::vector<int> other_stages(int value) const;
  int producer_stage(int value) const;
  // How a value leaves the stage that makes it, and arrives in one that reads it.
  Layout departure(int value) const;
  Layout arrival(int value, int stage) const;
  // Number of the message that takes a value (or its gradient back) to a stage that reads it.
  int64_t tag(int value, int stage, bool gradient) const;
  int tags() const { return static_cast<int>(crossings_.size()) * 2; }  // above all of them
  // Values that a stage gets from others, ascending.
  std::vector<int> arrivals(int stage) const;

 private:
  OperandUse home_in(int value, int stage) const;
  void check_devices() const;
  void find_uses();

  const graph::Graph& graph_;
  std::shared_ptr<const plan::Plan> plan_;
  std::vector<int> alone_{0};
  int last_stage_ = 0;
  plan::Fitted fitted_;                           // empty without a plan
  std::vector<NodePlacement> placements_;         // by node
  std::vector<std::vector<Use>> uses_;            // by value
  std::map<std::pair<int, int>, int> crossings_;  // (value, reading stage) → number
};

// Axes of more than one part along which a use gives addends of the gradient.
std::vector<int> partial_axes(const OperandUse& use);
// The devices of a layout in groups that differ along the given axes only; each group and the list
// of them ascending.
std::vector<std::vector<int>> groups_along(const Layout& layout, const std::vector<int>& axes);
// Whether two uses want the same pieces, and give addends on the same devices.
bool alike(const OperandUse& a, const OperandUse& b, const Shape& shape);

}  // namespace nns::lower
