// Skeleton: a graph under a plan, lowered for all of its ranks. Devices whose programs differ only
// in ranks, peers of messages, starts and offsets form a class and share one lowering, made when
// the first of them asks; scale units always share. `project` fills in what is the rank's own.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lower/lower.h"
#include "lower/memory.h"
#include "lower/peers.h"
#include "lower/seat.h"
#include "lower/traffic.h"

namespace nns::lower {

// A leaf of a Program: a value of the graph and its slot.
struct Leaf {
  int value = 0, slot = 0;
};

// One lowering for all devices of `holes`.
struct ClassProgram {
  Lowered lowered;  // as the first of them has it, with marks in place of what differs
  Holes holes;
  std::vector<Leaf> leaves;  // those that rest
  Memory memory;             // of a micro-batch
};

// What all lowerings of a graph under a plan have in common.
struct Common {
  std::shared_ptr<const graph::Graph> graph;
  Options options;
  std::vector<std::shared_ptr<const Layouts>> lanes;
  uint64_t graph_hash = 0;
  bool split_backward = false;  // weight gradients apart
  bool ordered = true;          // every rank sees the micro-batches of its stages in order
  // Names of parameters of a training graph: those that an optimizer may update, and of them those
  // from which a path of gradients leads to what is differentiated.
  std::set<std::string> trainable, reached;
};

// Lowers for `seats`, ranks of one device each that run the same stages; the first one is in the
// class, others may turn out to be of another. With `alone` it is the Program of just that rank.
ClassProgram lower_class(const Common& common, const std::vector<Seat>& seats, bool alone);
// How often this process has done so.
int64_t count_lowerings();

class Skeleton {
 public:
  // `alone`: every rank is a class. Throws a plan Error when the plan does not fit the graph.
  Skeleton(std::shared_ptr<const graph::Graph> graph, Options options, bool alone = false);

  // As its values are numbered: where weights rest elsewhere, they are carried into it.
  const std::shared_ptr<const graph::Graph>& graph() const { return common_.graph; }
  int world() const { return common_.lanes[0]->world(); }
  // The Program of a global rank, with what goes with it. Throws as `lower` does.
  Lowered project(int rank) const;
  // Where weights and buffers rest on a rank; nullptr without a plan.
  std::shared_ptr<const Homes> homes(int rank) const;
  // How a rank shares each parameter of its Program; empty without a plan.
  std::vector<Share> shares(int rank) const;
  const plan::Resting& rests() const { return common_.lanes[0]->fitted().rests; }
  // All ranks by class, each class and the list of them ascending. Lowers every class.
  std::vector<std::vector<int>> classes() const;
  // Bytes of a micro-batch on a rank, and what it sends (traffic.h).
  const Memory& memory(int rank) const { return class_of(rank).memory; }
  std::vector<Traffic> traffic(int rank) const { return lower::traffic(project(rank).program); }
  // What the rank's slots hold of the graph; empty unless the options ask for it.
  std::vector<Seen> seen(int rank) const;
  // Checks the Program of every class by itself and, where there are at most 64 ranks, those of all
  // ranks against each other (check_ranks.h); returns whether it did that too.
  bool check() const;

 private:
  const ClassProgram& class_of(int rank) const;
  int kind_of(int rank) const;
  std::vector<int> alike(int rank) const;
  Seat seat(int rank) const;
  void add_step(Program& program) const;

  Common common_;
  bool alone_;
  mutable std::vector<int> kinds_;  // by rank: which of them may be in one class
  mutable std::map<std::pair<int, int>, std::shared_ptr<const ClassProgram>> of_;  // kind, device
  mutable std::map<int, std::shared_ptr<const Homes>> homes_;
};

}  // namespace nns::lower
