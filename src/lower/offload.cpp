// Activations of modules that a plan names wait for backward in memory of the host: copied there as
// soon as they are made, and back where backward reads them first. What shares the memory of one,
// such as its reshapes, is made again of the copy.
#include <algorithm>
#include <map>
#include <set>

#include "lower/passes.h"
#include "lower/storage.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

class Offload {
 public:
  Offload(Program& program, const std::vector<bool>& nodes, const std::string& device)
      : program_(program), nodes_(nodes), device_(device), storage_(program) {}

  void run() {
    for (size_t s = 0; s < program_.segments.size(); ++s) {
      if (program_.segments[s].kind != SegmentKind::forward) continue;
      find(s);
      if (chosen_.empty()) continue;
      send(program_.segments[s]);
      for (size_t later = s + 1; later < program_.segments.size(); ++later)
        read_again(program_, again_, program_.segments[later]);
    }
  }

 private:
  // The memory that later segments read of what this one makes, as far as it may leave the device.
  void find(size_t s) {
    const Segment& segment = program_.segments[s];
    made_.clear();
    chosen_.clear();
    again_.clear();
    std::set<int> stays;  // roots: results, and what calls write into
    for (int out : segment.outputs) stays.insert(storage_.root(out));
    for (const Instr& instr : segment.instrs) {
      for (int out : instr.outs)
        if (out >= 0) made_[out] = &instr;
      if (instr.kind == InstrKind::update || is_in_place(instr))
        stays.insert(storage_.root(reads(instr)[0]));
    }
    for (size_t later = s + 1; later < program_.segments.size(); ++later)
      for (const Instr& instr : program_.segments[later].instrs)
        for (int slot : reads(instr)) {
          const int root = storage_.root(slot);
          if (made_.contains(slot) && !stays.contains(root) && leaves(root)) see(slot, root);
        }
  }

  bool leaves(int root) const {
    const auto made = made_.find(root);
    if (made == made_.end() || storage_.bytes(root) == 0) return false;
    const Instr& instr = *made->second;
    return instr.node >= 0 && nodes_[static_cast<size_t>(instr.node)] && !is_again(instr) &&
           communication_of(instr) == operators::Communication::none && makes_memory(instr);
  }

  // Notes the calls that make the slot of its root's memory.
  void see(int slot, int root) {
    std::vector<int> way;
    for (int at = slot; at != root; at = reads(*made_.at(at))[0]) {
      if (!made_.contains(at) || reads(*made_.at(at)).size() != 1 || made_.at(at)->outs.size() != 1)
        return;
      way.push_back(at);
    }
    for (int at : way) again_.try_emplace(at, *made_.at(at));
    chosen_.insert(root);
  }

  // Copies what was chosen to the host where it is made.
  void send(Segment& segment) {
    std::vector<Instr> old = std::move(segment.instrs);
    segment.instrs.clear();
    for (Instr& instr : old) {
      std::vector<Instr> copies;
      for (int out : instr.outs) {
        if (!chosen_.contains(out)) continue;
        const int there = new_slot(out);
        copies.push_back(copy(instr, operators::kToHost, {{"self", Ref{out}}}, there));
        again_.insert_or_assign(out, copy(instr, operators::kFromHost,
                                          {{"self", Ref{there}}, {"device", device_}}, out));
      }
      segment.instrs.push_back(std::move(instr));
      for (Instr& c : copies) segment.instrs.push_back(std::move(c));
    }
  }

  int new_slot(int like) {
    Slot slot = program_.slot(like);
    slot.id = static_cast<int>(program_.slots.size());
    program_.slots.push_back(slot);
    return slot.id;
  }

  static Instr copy(const Instr& of, const char* op, std::vector<NamedArg> args, int out) {
    Instr instr;
    instr.op = op;
    instr.args = std::move(args);
    instr.outs = {out};
    instr.node = of.node;
    instr.module = of.module;
    instr.loc = of.loc;
    return instr;
  }

  Program& program_;
  const std::vector<bool>& nodes_;
  const std::string device_;
  const Storage storage_;
  std::map<int, const Instr*> made_;  // of the segment, by slot
  std::set<int> chosen_;              // roots
  Remakes again_;
};

}  // namespace

std::set<int> on_host(const Program& program) {
  std::set<int> slots;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      if (const operators::Record* record = operators::find(instr.op);
          record != nullptr && record->on_host)
        slots.insert(instr.outs.begin(), instr.outs.end());
  return slots;
}

void offload(Program& program, const std::vector<bool>& nodes, const std::string& device) {
  if (std::find(nodes.begin(), nodes.end(), true) == nodes.end()) return;
  Offload(program, nodes, device).run();
}

}  // namespace nns::lower
