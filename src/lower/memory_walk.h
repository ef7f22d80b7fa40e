// Counts memory as the instructions of a program take and release it, segment by segment. `Where`
// says which slots look at one piece of memory: Storage, or Strides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "lower/program.h"
#include "lower/uses.h"
#include "operators/room.h"

namespace nns::lower {

// Where gradients lie that the first micro-batch makes; without it they are somewhere all the time.
struct GradientHomes {
  bool apart = false;               // in memory of the host
  std::map<int, int> set_of = {};   // by parameter: the set with one flat tensor it lies in
  std::vector<int64_t> bytes = {};  // of those tensors, by set
};

template <class Where>
class Walk {
 public:
  Walk(const Program& program, const Where& where, const GradientHomes* homes = nullptr)
      : program_(program),
        where_(where),
        homes_(homes),
        on_host_(on_host(program)),
        live_(program.slots.size(), 0),
        at_home_(program.slots.size(), false) {}

  // What instructions of a node have at most.
  struct Top {
    int64_t bytes = 0;      // above what was there before, with gradients
    int64_t gradients = 0;  // at that time
  };

  // Runs a segment; by node the most that is there while its instructions run, above `before`.
  std::map<int, Top> segment(const Segment& segment, int64_t before) {
    std::map<int, Top> tops;
    answered = 0;
    int node = -1;
    Top* top = &tops[node];
    note(*top, before, 0);
    // The answer to a message proves that its bytes are gone: the gradient of what was sent.
    if (segment.kind == SegmentKind::backward) {
      for (int slot : sent_) drop(slot);
      sent_.clear();
    }
    auto mark = segment.ahead.begin();
    std::set<int> begun;  // what gathers ahead have memory for
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      for (; mark != segment.ahead.end() && mark->after == i; ++mark)
        begin(segment, segment.blocks[mark->block], begun);
      if (communication_of(instr) == operators::Communication::send &&
          segment.kind == SegmentKind::forward) {
        const int slot = reads(instr)[0];
        make(slot);  // a further name of its memory
        sent_.push_back(slot);
      } else if (communication_of(instr) == operators::Communication::send) {
        answered += where_.bytes(where_.root(reads(instr)[0]));
      }
      if (instr.into >= 0) make_home(instr);
      for (int out : instr.outs)
        if (out >= 0 && begun.erase(out) == 0) make(out);
      if (instr.node >= 0 && instr.node != node) {
        node = instr.node;
        top = &tops.try_emplace(node, Top{now - before, gradients}).first->second;
      }
      note(*top, before, homes_ != nullptr ? workspace_of(instr) : 0);
      switch (instr.kind) {
        case InstrKind::release:
          for (int slot : reads(instr)) drop(slot);
          break;
        case InstrKind::accumulate:
          accumulate(instr);
          note(*top, before, 0);
          break;
        case InstrKind::call:
          if (is_in_place(instr)) drop(reads(instr)[0]);
          break;
        case InstrKind::update:
          break;
      }
    }
    return tops;
  }

  // Bytes that nobody but a message holds.
  int64_t in_messages() {
    std::map<int, int> count;  // by root
    for (int slot : sent_) ++count[where_.root(slot)];
    int64_t bytes = 0;
    for (const auto& [root, n] : count)
      if (counts(root) && names_of(root) == n) bytes += where_.bytes(root);
    return bytes;
  }

  // Bytes that slots hold, each memory once.
  int64_t held_by(const std::vector<int>& slots) {
    std::set<int> roots;
    int64_t bytes = 0;
    for (int slot : slots)
      if (counts(slot) && names_of(slot) > 0 && !on_host_.contains(where_.root(slot)) &&
          roots.insert(where_.root(slot)).second)
        bytes += where_.bytes(where_.root(slot));
    return bytes;
  }

  // Begins the next micro-batch, of which nothing is there yet.
  void next() {
    std::fill(live_.begin(), live_.end(), 0);
    std::fill(at_home_.begin(), at_home_.end(), false);
    sent_.clear();
  }

  int64_t now = 0;
  int64_t gradients = 0;  // of it
  int64_t host = 0;       // now, in its memory
  int64_t answered = 0;   // gradients that the last segment sent to other stages

 private:
  void note(Top& top, int64_t before, int64_t more) const {
    if (now + more - before > top.bytes) top = {now + more - before, gradients};
  }
  void begin(const Segment& segment, const BlockRun& run, std::set<int>& begun) {
    for (const size_t i : gathers_of(program_, segment, run)) {
      const int out = segment.instrs[i].outs.at(0);
      make(out);
      begun.insert(out);
    }
  }
  int64_t workspace_of(const Instr& instr) const {
    if (instr.kind != InstrKind::call || is_again(instr)) return 0;
    return operators::workspace(operators::CallView(
        instr.op, instr.args,
        [this](int id) -> const TensorType& { return program_.slot(id).type; }));
  }

  // The flat tensor that a gradient without an addend lies in is there from its first one on.
  bool lies_in_set(int parameter) {
    const auto found = homes_->set_of.find(parameter);
    if (found == homes_->set_of.end()) return false;
    if (sets_.insert(found->second).second) add_gradient(homes_->bytes.at(at(found->second)));
    return true;
  }
  void make_home(const Instr& instr) {
    if (homes_ == nullptr || homes_->apart || has_.contains(instr.into)) return;
    if (lies_in_set(instr.into)) at_home_[at(where_.root(instr.outs[0]))] = true;
  }
  void add_gradient(int64_t bytes) {
    now += bytes;
    gradients += bytes;
  }
  void accumulate(const Instr& instr) {
    const int x = reads(instr)[0];
    const bool first = homes_ != nullptr && has_.insert(instr.target).second;
    const bool stays = first && !homes_->apart && !lies_in_set(instr.target);
    if (!stays) {
      if (is_owned(instr)) drop(x);
    } else if (!is_owned(instr)) {
      add_gradient(bytes_of(gradient_type(program_.slot(instr.target))));
    } else if (counts(x)) {  // it is the gradient now
      if (kept_.insert(where_.root(x)).second) gradients += where_.bytes(where_.root(x));
    }
  }

  static size_t at(int i) { return static_cast<size_t>(i); }
  int& names_of(int slot) { return live_[at(where_.root(slot))]; }
  bool counts(int slot) const {
    const int root = where_.root(slot);
    return is_local(program_, root) && !at_home_[at(root)];
  }
  int64_t& memory_of(int slot) { return on_host_.contains(where_.root(slot)) ? host : now; }
  void make(int slot) {
    if (counts(slot) && names_of(slot)++ == 0) memory_of(slot) += where_.bytes(where_.root(slot));
  }
  void drop(int slot) {
    if (counts(slot) && --names_of(slot) == 0) memory_of(slot) -= where_.bytes(where_.root(slot));
  }

  const Program& program_;
  const Where& where_;
  const GradientHomes* homes_;
  const std::set<int> on_host_;
  std::vector<int> live_;      // by root: slots that hold its memory
  std::vector<bool> at_home_;  // by root: written where a gradient lies
  std::vector<int> sent_;      // by the forward of the stage
  std::set<int> has_, sets_;   // parameters with a gradient, sets with a flat tensor
  std::set<int> kept_;         // roots that are gradients
};

}  // namespace nns::lower
