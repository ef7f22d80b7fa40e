// Weights that a program reads in another dtype are cast once a step: they do not change between
// its micro-batches. A weight that rests in shards is cast before it is gathered, so that the
// gather moves the smaller of both, and nothing of it is kept whole between its uses.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

class Casts {
 public:
  explicit Casts(Program& program) : program_(program) {
    for (const auto* list : {&program.parameters, &program.buffers})
      for (int id : *list) names_.insert(program.slot(id).name);
  }

  void run() {
    see();
    for (Segment& segment : program_.segments)
      std::erase_if(segment.instrs, [&](Instr& instr) { return take(instr); });
    for (Segment& segment : program_.segments)
      for (Instr& instr : segment.instrs) {
        gather(instr);
        for_each_ref(instr.args, [&](Ref& ref) {
          if (const auto by = by_.find(ref.id); by != by_.end()) ref.id = by->second;
        });
      }
    remove_views();
  }

 private:
  struct Readers {
    std::set<DType> casts;  // to which it is cast
    bool others = false;    // whether anything else reads it
  };

  // The slot that a call casts, and nothing else; floating numbers to floating ones of another
  // dtype.
  std::optional<int> cast_of(const Instr& instr) const {
    if (instr.kind != InstrKind::call || instr.outs.size() != 1 || instr.outs[0] < 0)
      return std::nullopt;
    const operators::Record* record = operators::find(instr.op);
    using operators::View;
    const bool copies =
        record != nullptr && (record->view == View::perhaps || record->view == View::copy);
    const std::vector<int> in = reads(instr);
    if (!copies || is_in_place(instr) || in.size() != 1) return std::nullopt;
    const TensorType &from = program_.slot(in[0]).type, &to = program_.slot(instr.outs[0]).type;
    if (!is_floating(from.dtype) || !is_floating(to.dtype) || from.dtype == to.dtype ||
        from.shape != to.shape)
      return std::nullopt;
    return in[0];
  }

  // Who reads what; casts that others may write to, or that leave the program, are its own.
  void see() {
    for (const Segment& segment : program_.segments) {
      for (int out : segment.outputs) {
        own_.insert(out);
        readers_[out].others = true;
      }
      for (const Instr& instr : segment.instrs) {
        const operators::Record* record = operators::find(instr.op);
        const bool writes = instr.kind == InstrKind::update ||
                            (instr.kind == InstrKind::call && is_in_place(instr)) ||
                            (record != nullptr && record->hook);
        for (int slot : reads(instr)) {
          if (writes) own_.insert(slot);
          if (cast_of(instr) == slot)
            readers_[slot].casts.insert(program_.slot(instr.outs[0]).type.dtype);
          else
            readers_[slot].others = true;
        }
      }
    }
    for (const Segment& segment : program_.segments)
      for (const Instr& instr : segment.instrs)
        if (cast_of(instr) && own_.contains(instr.outs[0])) readers_[reads(instr)[0]].others = true;
  }

  // Whether the call goes, since a cast of the step stands for its result.
  bool take(Instr& instr) {
    if (is_gather(instr)) gathers_[instr.outs[0]] = reads(instr)[0];
    if (is_part(instr)) parts_.insert_or_assign(instr.outs[0], instr);
    const auto from = cast_of(instr);
    if (!from || own_.contains(instr.outs[0])) return false;
    const int out = instr.outs[0];
    if (program_.slot(*from).role == SlotRole::parameter) {
      const auto cast = made(*from, instr);
      if (!cast) return false;
      by_[out] = *cast;
      return true;
    }
    if (const auto part = parts_.find(*from); part != parts_.end()) {
      const auto cast = made(reads(part->second)[0], instr);
      if (!cast) return false;
      instr.op = part->second.op;  // a part of the cast
      instr.args = part->second.args;
      for_each_ref(instr.args, [&](Ref& ref) { ref.id = *cast; });
      return false;
    }
    // Of a weight that is gathered: the gather gives what the first such call did.
    const auto gathered = gathers_.find(*from);
    if (gathered == gathers_.end()) return false;
    const Readers& readers = readers_.at(*from);
    if (readers.others || readers.casts.size() != 1) return false;
    const auto [known, first] = gives_.try_emplace(*from, Gives{out, -1});
    if (first) {
      const auto cast = made(gathered->second, instr);
      if (!cast) {
        gives_.erase(known);
        return false;
      }
      known->second.of = *cast;
    } else {
      by_[out] = known->second.out;
    }
    return true;
  }

  bool is_gather(const Instr& instr) const {
    return instr.kind == InstrKind::call && instr.outs.size() == 1 && instr.outs[0] >= 0 &&
           communication_of(instr) == operators::Communication::all_gather &&
           program_.slot(reads(instr)[0]).role == SlotRole::parameter;
  }

  // Whether the call looks at a parameter, or a part of it.
  bool is_part(const Instr& instr) const {
    if (instr.kind != InstrKind::call || instr.outs.size() != 1 || instr.outs[0] < 0) return false;
    const operators::Record* record = operators::find(instr.op);
    const std::vector<int> in = reads(instr);
    return record != nullptr && is_view(record->view) && !is_in_place(instr) && in.size() == 1 &&
           program_.slot(in[0]).role == SlotRole::parameter &&
           program_.slot(in[0]).type.dtype == program_.slot(instr.outs[0]).type.dtype;
  }

  // Parts of weights that nobody reads any more, but their casts.
  void remove_views() {
    std::set<int> read;
    for (const Segment& segment : program_.segments) {
      read.insert(segment.outputs.begin(), segment.outputs.end());
      for (const Instr& instr : segment.instrs)
        for (int slot : reads(instr)) read.insert(slot);
    }
    for (Segment& segment : program_.segments)
      std::erase_if(segment.instrs, [&](const Instr& instr) {
        return is_part(instr) && !read.contains(instr.outs[0]);
      });
  }

  // Lets a gather whose result was only cast gather the cast.
  void gather(Instr& instr) {
    if (!is_gather(instr)) return;
    const auto known = gives_.find(instr.outs[0]);
    if (known == gives_.end()) return;
    for_each_ref(instr.args, [&](Ref& ref) { ref.id = known->second.of; });
    instr.outs[0] = known->second.out;
  }

  // The cast of a parameter that stands for what `like` does; none where its name is taken.
  std::optional<int> made(int parameter, const Instr& like) {
    const DType to = program_.slot(like.outs[0]).type.dtype;
    const auto known = casts_.find({parameter, to});
    if (known != casts_.end()) return known->second;
    Slot slot;
    slot.id = static_cast<int>(program_.slots.size());
    slot.type = {program_.slot(parameter).type.shape, to};
    slot.role = SlotRole::cast;
    slot.name = fmt::format("{}_{}", program_.slot(parameter).name, nns::name_of(to));
    if (!names_.insert(slot.name).second) return std::nullopt;
    Instr cast = like;
    for_each_ref(cast.args, [&](Ref& ref) { ref.id = parameter; });
    cast.outs = {slot.id};
    cast.module.clear();  // several may read it
    cast.loc = {};
    program_.casts.push_back(std::move(cast));
    casts_[{parameter, to}] = slot.id;
    program_.slots.push_back(std::move(slot));
    return program_.slots.back().id;
  }

  struct Gives {
    int out, of;  // its result from here on, and the cast that it gathers
  };

  Program& program_;
  std::set<std::string> names_;
  std::map<int, Readers> readers_;
  std::set<int> own_;                           // slots of micro-batches
  std::map<std::pair<int, DType>, int> casts_;  // of parameters
  std::map<int, int> gathers_;                  // parameters that are gathered, by result
  std::map<int, Instr> parts_;                  // views of parameters, by result
  std::map<int, Gives> gives_;                  // by result of a gather
  std::map<int, int> by_;                       // slots that others stand for
};

}  // namespace

void cast_once(Program& program) {
  // Who calls a module of a hand-written model may change its weights between calls.
  if (program.training && !program.embedded) Casts(program).run();
}

}  // namespace nns::lower
