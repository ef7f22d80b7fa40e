// One stage of a graph on devices that share a lowering: writes its forward calls with the
// communication that brings operands to where they are used, messages from and to other stages, and
// the backward of both.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lower/distribution.h"
#include "lower/exchange.h"
#include "lower/lower.h"
#include "lower/tape.h"

namespace nns::lower {

// Cuts a box down to the part of one turn of `turns`.
void take_turn(std::vector<Range>& box, const TurnCut& cut, int turn, int turns);

class StageLowering {
 public:
  // Writes into `out` through `emitter`, as the first of `peers` sees the graph; names of segments
  // end in `suffix`. `sights`, if any, get what slots hold.
  StageLowering(const graph::Graph& graph, Distribution where, Peers& peers, Emitter& emitter,
                Lowered& out, std::string suffix, Sights* sights);
  StageLowering(const StageLowering&) = delete;
  StageLowering& operator=(const StageLowering&) = delete;

  const Distribution& where() const { return where_; }
  const AdapterCount& adapters() const { return exchange_.count(); }
  // Slots that other devices of the stage send on, but not this one.
  const std::vector<int>& unsent() const { return unsent_; }
  // Gives the slot that holds an input, parameter, buffer or constant laid out as `use`.
  void bind_leaf(int value, const OperandUse& use, Ref slot, std::optional<Shard> shard);
  void forward();
  // With `split`, weight gradients go into a segment of their own.
  void backward(bool split);

 private:
  void hold(int value, const OperandUse& use, Ref slot, bool made);
  Ref slot_of(Ref value);
  Ref slot_for(Ref value, const OperandUse& use);
  std::vector<Ref> call(const graph::Node& node, int turn, std::vector<Instr>& instrs,
                        const std::vector<int>& calls_in_module);
  int region_of(const graph::Node& node, int turn);
  std::vector<NamedArg> local_call(const graph::Node& node, int turn, CallSite& site,
                                   std::vector<TensorType>& types);
  const NodePlacement* placed(const graph::Node& node) const { return layouts_.placed(node); }
  int turns_of(const graph::Node& node) const { return where_.planned() ? placed(node)->turns : 1; }
  std::vector<NamedArg> args_of(const graph::Node& node, int turn);
  void place_draw(const NodePlacement& placed, const Shape& shape, int turn, CallSite& site);
  Shape local_shape(const Layout& layout, const Shape& shape, const TurnCut* cut, int turn,
                    int turns);
  std::vector<const graph::Node*> run_from(size_t first);
  bool updates_buffer(const graph::Node& node) const;
  void call_in_turns(const std::vector<const graph::Node*>& run, std::vector<Instr>& instrs,
                     const std::vector<int>& calls_in_module);
  Ref turn_of(Ref value, const NodePlacement& placed, size_t i, int turn);
  void join(const graph::Node& node, size_t k);
  void emit_hook(const graph::Node& node, bool before, std::vector<Ref> tensors);
  // A gradient of a micro-batch that counts for nothing is sent as zeros.
  void emit_send(Ref x, const Layout& from, const Layout& to, const Shape& shape, int64_t tag,
                 bool gradient = false);
  Ref emit_receive(const TensorType& type, Shape moves, int64_t tag, const std::string& name);
  void receive_values(std::vector<Instr>& instrs);
  void send_value(int id);
  void receive_gradients(std::vector<std::pair<Ref, Ref>>& seeds);
  void send_gradients(const std::vector<Ref>& gradients);
  void update_buffers(const graph::Node& node, std::vector<Instr>& instrs);
  void copy_leaves_to_buffers(std::vector<Instr>& instrs);
  void update_buffer(int buffer, int value, Ref content, std::vector<Instr>& instrs);
  std::optional<double> decay_of(int buffer, int value) const;
  void name_slots(const std::vector<Instr>& instrs, size_t first);
  graph::Nest convert(const graph::Nest& nest, std::vector<int>& outputs);
  Ref loss() const;
  void seed_results(const graph::Nest& nest, const std::string& name,
                    std::vector<std::pair<Ref, Ref>>& seeds);
  void give_back(const std::vector<std::pair<Ref, Ref>>& seeds, const std::vector<Ref>& gradients,
                 std::vector<Instr>& instrs);
  Ref scattered(Ref parameter, Ref gradient);
  std::map<int, Ref> replay(int region, std::vector<Instr>& instrs);
  Segment& add_segment(SegmentKind kind);
  SlotRole role(Ref slot) const { return out_.program.slot(slot.id).role; }

  const graph::Graph& graph_;
  Distribution where_;
  const Layouts& layouts_;
  Peers& peers_;
  Emitter& e_;
  Lowered& out_;
  std::string suffix_;
  Tape tape_;
  Exchange exchange_;
  size_t forward_ = 0;                               // index of the forward segment
  std::vector<std::pair<int, Ref>> arrived_, sent_;  // values between stages that need gradients
  std::vector<int> unsent_;
  Sights* sights_;  // nullptr: nobody looks
  struct Held {
    OperandUse use;
    Ref slot;
    std::optional<Shard> shard = {};  // of a parameter that rests in shards
    Ref gathered = {};                // all of it, once it is used
  };
  std::vector<Held> held_;         // by value: as it was made
  std::map<int, Shard> scatters_;  // by slot: weights whose gradients alone rest in shards
  std::map<std::string, Ref> converted_;
  std::map<int, std::vector<std::pair<size_t, size_t>>> regions_;
  std::map<std::pair<int, int>, int> region_ids_;  // recompute region, turn → number
  std::map<int, std::vector<Ref>> in_turns_;       // values of the run in work, by turn
  std::map<std::tuple<int, int, int>, std::vector<Ref>> cuts_;  // slot, dim, turns → parts
};

}  // namespace nns::lower
