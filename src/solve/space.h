// Space: a graph as steps of a search. A step is a call with its candidates, told by positions in
// the list of values that are alive, so that the steps of repeated layers are the same steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "plan/builder.h"
#include "solve/constraint.h"
#include "solve/piece.h"

namespace nns::solve {

// What a search is asked.
struct Problem {
  std::shared_ptr<const graph::Graph> graph;
  int plan_ngpus = 1, runtime_ngpus = 1;
  std::string device = "cpu";  // that programs are made for
  cost::Hardware on;
  lower::StepSettings settings;
  int pipeline = 1;  // pipeline ranks, each with as many of the plan's devices
  std::vector<Constraint> constraints = {};

  // Devices that share the calls of a stage.
  int width() const { return plan_ngpus / pipeline; }
  int units() const { return runtime_ngpus / plan_ngpus; }
};

// Calls of one operator, arguments and shapes.
struct Kind {
  int node = 0;  // the first of them
  std::vector<Candidate> candidates;
};

// A weight, buffer, input or constant; those that are alike are one.
struct Leaf {
  int type = 0;          // in Space::types
  bool rests = false;    // a parameter or buffer
  bool weight = false;   // a parameter
  bool trained = false;  // it gets a gradient
  bool requires_grad = false;
  bool single = false;  // read once: it rests as it is used
  auto operator<=>(const Leaf&) const = default;
};

constexpr int kManyReaders = 4;

// A value while later steps read it.
struct Live {
  int type = 0;  // in Space::types
  bool requires_grad = false;
  uint16_t codes = 0;  // of the uses to come, a bit each
  int readers = 0;     // how often later steps read it, at most kManyReaders
  int leaf = -1;       // in Space::leaves
  auto operator<=>(const Live&) const = default;
};

// The results of the model, and a call whose results nobody reads: it is taken out, but the weights
// that it would read rest whole for it.
constexpr int kResults = -1, kUnread = -2;

struct Step {
  int kind = -1;  // kResults, kUnread: no call
  Asked asked;    // `strided` is left to the search
  // In the list of live values, leaves that this step reads first behind it; -1: `leaf` has no
  // other use.
  struct Operand {
    int at = -1, leaf = -1;
    auto operator<=>(const Operand&) const = default;
  };
  std::vector<Operand> operands;
  std::vector<Live> lives;     // what stands there, by operand
  std::vector<Live> enter;     // leaves that are read from here on
  std::vector<Live> results;   // those that somebody reads
  std::vector<int> result_of;  // number among the call's results, by `results`
  bool of_sum = false;         // operand 0 is a sum that nothing has read before
  std::vector<int> last;       // operands that enter and are leaves read for the last time
  // Results that become the content of a buffer: number among `results`, live place of the buffer
  // (-1: it has no use beside that of this call, operand `operand`).
  struct Update {
    int result = 0, at = -1, operand = -1;
    auto operator<=>(const Update&) const = default;
  };
  std::vector<Update> updates;
  std::vector<int> survive;     // of live, enter, results: what later steps read
  std::vector<int> readers;     // of those, as in Live
  std::vector<uint16_t> codes;  // of those, as in Live
  std::vector<bool> loss;       // of the results of the model: whether it gets a gradient
  auto operator<=>(const Step&) const = default;
};

class Space {
 public:
  // Throws a model Error for a graph whose regions run again in backward, a usage Error for a
  // constraint that matches no call or leaves one without candidate.
  explicit Space(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const std::vector<Kind>& kinds() const { return kinds_; }
  const std::vector<Leaf>& leaves() const { return leaves_; }
  const std::vector<Step>& steps() const { return steps_; }
  // The steps of the graph in order, by number in `steps`; the last gives the results. `nodes` says
  // which node each step is.
  const std::vector<int>& sequence() const { return sequence_; }
  const std::vector<int>& nodes() const { return nodes_; }
  // First steps of the segments of the sequence: repeated modules are segments of their own.
  const std::vector<size_t>& segments() const { return segments_; }
  size_t segment_end(size_t segment) const {
    return segment + 1 < segments_.size() ? segments_[segment + 1] : sequence_.size();
  }
  // Of each segment a number: equal for the same steps on the same values that are alive.
  const std::vector<int>& segment_ids() const { return segment_ids_; }
  // The values that are alive at the begin of each place of the sequence, and at its end.
  const std::vector<std::vector<Live>>& live() const { return alive_; }
  // Of each segment: whether it is an entry of a list of modules.
  const std::vector<bool>& listed() const { return listed_; }
  uint64_t structure() const { return structure_; }  // graph::structure_hash

  const std::vector<TensorType>& types() const { return types_; }

  // `strided`: a bit for each operand.
  const CallPiece& piece(int step, size_t candidate, uint32_t strided) const;
  const ConversionPiece& conversion(int type, Code from, Code to, bool requires_grad) const;
  double sum(int type, Code code) const;  // seconds of adding two gradients
  // What a leaf that rests in a layout costs, with its states in shards by a level of plan::Zero:
  // bytes, seconds a step beside micro-batches, and of a micro-batch in forward; `again`: once in
  // backward where that reads it; `gradient`: of each contribution to its gradient, or once of
  // their sum where they are `joined`. `update` is a part of `seconds`, `scatter` one of
  // `gradient`.
  struct Rest {
    int64_t bytes = 0;
    double seconds = 0, update = 0, forward = 0, again = 0, gradient = 0, scatter = 0;
    bool joined = false;
  };
  const Rest& rest(int leaf, Code home, int zero) const;
  // The bytes and seconds of weights and buffers that no call reads, and of constants.
  Rest unread(int zero) const;
  TensorType local(int type, Code code) const;
  int64_t local_bytes(int type, Code code) const;
  // Numbers from 1 on for seconds that sums are spared.
  uint8_t spared_id(double seconds) const;
  double spared(uint8_t id) const { return id == 0 ? 0 : spared_[static_cast<size_t>(id - 1)]; }

 private:
  int type_of(int value);
  int leaf_of(int value) const { return leaf_of_[static_cast<size_t>(value)]; }
  bool rests(int value) const;
  bool is_sum_before(const graph::Node& node) const;
  void find_live();
  void find_kinds();
  void find_gradients();
  void find_leaves();
  void find_steps();
  void add_results(std::vector<int>& alive);
  void find_segments();
  void find_alive();
  void find_segment_ids();
  Rest make_rest(const Leaf& leaf, Code home, int zero) const;
  Live live_of(int value);
  uint16_t codes_after(int value, int node) const;
  int add(const Step& step);
  const CallPiece& make(int kind, size_t candidate, const Asked& asked) const;

  Problem problem_;
  std::vector<Kind> kinds_;
  std::vector<Leaf> leaves_;
  std::vector<Step> steps_;
  std::vector<int> sequence_, nodes_;
  std::vector<size_t> segments_;
  std::vector<bool> listed_;
  std::vector<int> segment_ids_;
  std::vector<std::vector<Live>> alive_;
  int64_t constants_ = 0;       // bytes
  std::map<Leaf, int> unread_;  // how many there are
  uint64_t structure_ = 0;
  std::vector<TensorType> types_;
  std::map<std::pair<DType, Shape>, int> type_ids_;
  std::map<Step, int> step_ids_;
  // By node:
  std::vector<int> kind_;
  std::vector<Asked> asked_;
  std::vector<std::vector<int>> inputs_;  // graph::inputs_of
  std::vector<bool> live_;
  // By value:
  std::vector<bool> requires_, gets_;
  std::vector<int> uses_, leaf_of_, type_of_;
  struct Reader {
    int node = 0;
    uint16_t codes = 0;
  };
  std::vector<std::vector<Reader>> readers_;  // by value, in program order
  mutable std::map<std::tuple<int, size_t, Asked>, CallPiece> pieces_;
  mutable std::unordered_map<uint64_t, const CallPiece*> of_step_;
  struct OfType {  // of one type, by codes
    std::vector<std::optional<ConversionPiece>> conversions;
    std::vector<double> sums;
    std::vector<int64_t> bytes;  // of a part; -1: not known yet
  };
  mutable std::vector<OfType> of_type_;
  mutable std::vector<double> spared_;
  mutable std::vector<std::vector<std::optional<Rest>>> rests_;  // by leaf, of levels by codes
};

}  // namespace nns::solve
