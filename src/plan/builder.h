// What a policy calls: partition, replicate, assign, stage, recompute, schedule. Each call is
// checked at once against the operator's annotation; `finish` checks the whole and gives the Plan.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "annotate/grammar.h"
#include "plan/plan.h"

namespace nns::plan {

class Builder {
 public:
  // Throws a usage Error unless runtime_ngpus is a multiple of plan_ngpus.
  Builder(std::shared_ptr<const graph::Graph> graph, int plan_ngpus, int runtime_ngpus);

  const graph::Graph& graph() const { return *graph_; }
  int plan_ngpus() const { return plan_.plan_ngpus; }
  uint64_t structure() const { return plan_.structure; }  // graph::structure_hash

  // Cuts a node further: earlier cuts stay outside. `dim` may count from the end.
  // Parts are equal, or where `uneven` may differ by one, or have the given sizes. Throws a plan
  // Error that names operator, dimension, sizes and the legal choices.
  void partition(int node, int input, int dim, int parts, bool uneven = false,
                 std::vector<int64_t> sizes = {});
  // Why `partition` would refuse, or nothing; with `in_turns`, also why the parts could not run one
  // after another on a device.
  std::optional<std::string> refusal(int node, int input, int dim, int parts, bool uneven = false,
                                     bool in_turns = false,
                                     const std::vector<int64_t>& sizes = {}) const;
  // What `partition` would do to the node's tensors; nothing where it would refuse.
  std::optional<annotate::Split> split(int node, int input, int dim, int parts) const;
  // Every (input, dim) of the node that can be cut at all.
  std::vector<annotate::Place> choices(int node) const;
  void replicate(int node, int parts);
  // Devices of the node's parts, in row-major order of its cuts.
  void assign(int node, std::vector<int> devices);
  // Starts stages: the first node of each but the first, ascending.
  void stage(const std::vector<int>& first_nodes, std::vector<std::vector<int>> devices);
  void recompute(const std::vector<int>& nodes);
  // Keeps what backward reads of their results in memory of the host.
  void offload(const std::vector<int>& nodes);
  void hooks(int node, Hooks hooks) { op(node).hooks = std::move(hooks); }
  // `orders` of a custom schedule, as plan::Plan has them.
  void schedule(const std::string& name, int micro_batches, int chunks,
                std::vector<std::string> orders = {});
  // Level 0 to 3, of all weights or of one.
  void zero(int level) { plan_.zero.level = level; }
  void zero(const std::string& weight, int level) { plan_.zero.levels[weight] = level; }
  void zero_groups(int groups) { plan_.zero.groups = groups; }
  void zero_scatter() { plan_.zero.scatter = true; }
  void undivided(const std::string& weight) { plan_.zero.whole.insert(weight); }
  void strict() { plan_.strict = true; }

  int stage_of(int node) const { return ops_.at(static_cast<size_t>(node)).stage; }
  const std::vector<int>& devices_of_stage(int stage) const {
    return plan_.stage_devices.at(static_cast<size_t>(stage));
  }
  bool planned(int node) const { return ops_.at(static_cast<size_t>(node)).planned; }

  // Throws a plan Error that names the first node without a device, or with fewer parts than its
  // stage has devices.
  Plan finish(const std::string& policy);

 private:
  struct Op {
    std::vector<Cut> cuts;
    std::vector<int> devices;
    int stage = 0, recompute = -1;
    Hooks hooks;
    bool planned = false, offload = false;
    std::map<std::string, int> parts;  // by identifier
    std::set<std::string> sized;       // those cut into given sizes
  };
  Op& op(int node);
  const graph::Node& node(int id) const { return graph_->nodes.at(static_cast<size_t>(id)); }
  const std::optional<annotate::Binding>& binding(int node) const;
  OpKey key(int node) const;

  std::shared_ptr<const graph::Graph> graph_;
  Plan plan_;
  std::vector<Op> ops_;
  int recompute_groups_ = 0;
  mutable std::vector<std::optional<std::optional<annotate::Binding>>> bindings_;
};

}  // namespace nns::plan
