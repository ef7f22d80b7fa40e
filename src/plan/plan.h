// Plan: what is split, where it runs, in which order, for one scale unit of `plan_ngpus` devices;
// runtime_ngpus / plan_ngpus units repeat it on other samples. Plain data that survives re-tracing:
// operators are named by module path, operator and ordinal, never by an id of one trace.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace nns::plan {

// One cut of an operator: in `parts` along the identifier that its annotation gives
// dimension `dim` of tensor operand `input`; input -1 replicates `parts` times instead. Parts are
// equal, or differ by one where `uneven`, or have the `sizes` given (then `uneven` too).
struct Cut {
  int input = -1, dim = 0, parts = 1;
  bool uneven = false;
  std::vector<int64_t> sizes = {};
  bool operator==(const Cut&) const = default;
};

// Name of an operator that survives re-tracing.
struct OpKey {
  std::string module, op;
  int ordinal = 0;
  auto operator<=>(const OpKey&) const = default;
};
// "h.0.attn aten::linear#1"
std::string to_string(const OpKey& key);

// Functions of the user that run around an operator, by the names that `require` finds them by;
// `meta` is handed to them.
struct Hooks {
  std::string before, after, meta;
  bool operator==(const Hooks&) const = default;
};

struct OpPlan {
  OpKey key;
  std::vector<Cut> cuts;     // outer first; parts row-major over them (the last varies fastest)
  std::vector<int> devices;  // plan device of each part; repeats run one after another there
  int stage = 0;
  int recompute = -1;  // recompute group, or -1
  Hooks hooks = {};
  bool offload = false;  // what backward reads of its results waits in memory of the host

  int parts() const;
  // Parts that each device runs one after another: how often a device stands in a row.
  int turns() const;
  bool operator==(const OpPlan&) const = default;
};

// Which states of a weight rest in shards over the ranks that hold addends of its gradient (ZeRO).
// Each level has what the one before has.
struct Zero {
  static constexpr int none = 0;
  static constexpr int slots = 1;      // those of the optimizer
  static constexpr int gradients = 2;  // every micro-batch scatters its gradients
  static constexpr int weights = 3;    // gathered for use: fsdp

  int level = none;
  int groups = 1;        // of scale units: shards inside of each, sums over all of them
  bool scatter = false;  // level 1: the sum of gradients keeps a shard only
  std::map<std::string, int> levels = {};  // of weights with a level of their own, by name
  std::set<std::string> whole = {};        // weights whose slots one rank keeps undivided

  int of(const std::string& name) const;
  int most() const;  // the greatest of all levels
  bool operator==(const Zero&) const = default;
};

struct Plan {
  std::string policy;  // what made it
  int plan_ngpus = 1, runtime_ngpus = 1;
  std::vector<OpPlan> ops;  // in program order of the graph it was made for
  int stages = 1;
  std::vector<std::vector<int>> stage_devices;  // per stage
  std::string schedule = "1f1b";                // of several stages; a predefined name or "custom"
  int micro_batches = 1;                        // a unit's micro-batches a step
  int chunks = 1;                               // stages a pipeline rank
  std::vector<std::string>
      orders;  // of "custom", per pipeline rank: "F0 F1 B0 B1", "F1:0" with stage
  Zero zero;
  bool strict = false;     // a shape that the cuts do not fit is an error (pas_config.strict)
  uint64_t structure = 0;  // graph::structure_hash of the graph it was made for

  int units() const { return runtime_ngpus / plan_ngpus; }
};

// Text form, one line an operator; a small change of the plan is a small change of the text.
std::string to_text(const Plan& plan);
std::string to_json(const Plan& plan);
// Throws a state Error on malformed input.
Plan from_json(std::string_view text);
uint64_t hash(const Plan& plan);

// Throws a plan Error that names the first difference unless the plan was made for the graph.
void match(const Plan& plan, const graph::Graph& graph);

// Whether the plan has an entry for each operator of a graph, or for another call of it in the same
// module.
bool knows(const Plan& plan, const graph::Graph& graph);

// The plan with the operators of another one, made for another graph of the same model; nothing
// where their stages lie on other devices.
std::optional<Plan> with_operators(const Plan& plan, const Plan& other);

// Stages in which weights and buffers rest, by name.
using Resting = std::map<std::string, std::set<int>>;

// The plan as it holds for a graph.
struct Fitted {
  std::vector<OpPlan> ops;            // by node id
  Resting rests;                      // of all weights and buffers of the graph
  std::vector<std::string> notes;     // operators that the plan does not place, each a line
  std::vector<std::string> warnings;  // operators that are replicated instead of split
};

// Fits the plan to a graph: the one it was made for, maybe of other shapes, or another one of the
// same model, whose weights rest where the first graph of the plan has put them (`rests`).
//
// A cut that no longer divides makes uneven parts where the annotation allows; elsewhere the
// operator is replicated, with a warning. Operators go by module path, name and ordinal; one that
// the plan does not know, or that cannot lie in the plan's stage, runs with what makes its
// operands, cut as they are, or as other calls of it in its module that read weights.
//
// Throws a plan Error as `match` does for a training graph without `rests`, for a strict plan
// wherever a cut does not divide, and where no stage can hold a buffer that is written.
Fitted fit(const Plan& plan, const graph::Graph& graph, const Resting* rests = nullptr);

// The graph with weights that are read in other stages than those they rest in handed on from
// there: a reshape to their own shape, named after the weight. Nothing where all are at home.
std::optional<graph::Graph> carry(const Plan& plan, const graph::Graph& graph,
                                  const Resting& rests);

// Throws a plan Error that names both numbers unless the plan spans `plan_ngpus` devices; returns
// it repeated for `runtime_ngpus` ranks.
Plan for_devices(Plan plan, int plan_ngpus, int runtime_ngpus);

// Throws a plan Error unless the groups of `zero` divide the scale units and its levels are known.
void check_zero(const Plan& plan);

}  // namespace nns::plan
