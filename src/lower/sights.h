// Sights: which slots of a Program hold a value of the graph, or its gradient, and how the parts
// that ranks hold make the whole. Collected where somebody wants to look at a run
// (Options::sights): `nnscaler diff` puts values together by them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/placement.h"
#include "lower/program.h"

namespace nns::lower {

// A slot of a lowering.
struct Sight {
  int value = 0;
  bool gradient = false;
  // The node that has the value brought into this form, or whose derivative gives this addend of
  // the gradient; -1: the value as it is made or arrives, all of its gradient.
  int reader = -1;
  int slot = 0;
  Layout layout;
};

class Sights {
 public:
  // A slot holds a value as `use` has it. `made`: here it is made, so the gradients of all its
  // readers come together here.
  void see(int value, int slot, const OperandUse& use, int reader, bool made);
  // Slots from `first` to before `last` bring a value from one form into another.
  void bring(int value, size_t first, size_t last);
  // The derivative of a call of node `reader`, with results `outs`, gives the gradient of a slot.
  void give(int reader, const std::vector<ValueRef>& outs, int slot, int gradient);
  // All of the gradients, by slot; -1: none.
  void total(const std::vector<ValueRef>& gradients);
  // Slots that others stand for now.
  void rename(const std::map<int, int>& by);

  std::vector<Sight>& list() { return list_; }

 private:
  struct Place {
    int value = 0;
    Layout gradient;  // how gradients of this form are addends or cuts of the whole
    bool made = false;
  };
  std::vector<Sight> list_;
  std::map<int, Place> places_;  // by slot
  std::map<int, int> brings_;    // by slot: of which value it is a form, or on the way to one
};

// A sight as a device sees it run: result `out` of call number `call` of a segment.
struct Seen {
  int value = 0;
  bool gradient = false;
  int reader = -1, node = -1;  // node: that the call comes from, -1: none
  int segment = 0, call = 0, out = 0;
  std::string layout;
  Piece piece;
};
// In the order of the calls. Slots that no call makes are left out.
std::vector<Seen> seen_on(const graph::Graph& graph, const Program& program,
                          const std::vector<Sight>& sights, int device);

}  // namespace nns::lower
