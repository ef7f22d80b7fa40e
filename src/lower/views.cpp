// Views that need not be: aliases, reshapes to the same shape or of a reshape, repeats.
#include <map>

#include "lower/passes.h"
#include "lower/storage.h"
#include "lower/uses.h"
#include "operators/record.h"

namespace nns::lower {
namespace {

// Slots that others stand for.
class Substitution {
 public:
  int of(int slot) const {
    const auto it = of_.find(slot);
    return it == of_.end() ? slot : it->second;
  }
  const std::map<int, int>& all() const { return of_; }
  void set(int slot, int by) { of_[slot] = of(by); }
  void apply(std::vector<NamedArg>& args) const {
    for_each_ref(args, [&](Ref& ref) { ref.id = of(ref.id); });
  }
  void apply(std::vector<int>& slots) const {
    for (int& slot : slots) slot = of(slot);
  }
  void apply(graph::Nest& nest) const {
    if (auto* ref = std::get_if<Ref>(&nest.node)) {
      ref->id = of(ref->id);
    } else if (auto* fields =
                   std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node)) {
      for (auto& [key, field] : *fields) apply(field);
    }
  }

 private:
  std::map<int, int> of_;
};

using operators::View;

View view_of(const Instr& instr) {
  const operators::Record* record = operators::find(instr.op);
  return record == nullptr ? View::none : record->view;
}
bool is_reshape(const Instr& instr) {
  return view_of(instr) == View::reshape;
}

std::string text_of(const Instr& instr) {
  std::string text = fmt::format("{}|{}", block_of(instr.module), instr.op);
  for (const NamedArg& a : instr.args) text += "|" + a.name + "=" + graph::to_text(a.value);
  return text;
}

class Folder {
 public:
  explicit Folder(Program& program) : program_(program), storage_(program) {}

  std::map<int, int> run() {
    for (Segment& segment : program_.segments) {
      reshapes_.clear();
      made_.clear();
      std::erase_if(segment.instrs, [&](Instr& instr) { return fold(instr); });
      same_.apply(segment.outputs);
    }
    for (graph::Nest& nest : program_.outputs) same_.apply(nest);
    return same_.all();
  }

 private:
  // Whether the call can go, since another slot stands for its result.
  bool fold(Instr& instr) {
    same_.apply(instr.args);
    if (instr.kind != InstrKind::call || instr.outs.size() != 1 || instr.outs[0] < 0) return false;
    const int out = instr.outs[0];
    const std::vector<int> in = reads(instr);
    if (in.empty()) return false;
    if (is_reshape(instr)) {
      // Only of a true view: a copy is not to be made twice.
      const auto inner = reshapes_.find(in[0]);
      if (inner != reshapes_.end() && storage_.root(in[0]) != in[0])
        std::get<Ref>(instr.args[0].value).id = inner->second;
    }
    const int from = reads(instr)[0];
    if (view_of(instr) == View::same ||
        (is_reshape(instr) && program_.slot(from).type == program_.slot(out).type)) {
      same_.set(out, from);
      return true;
    }
    if (!is_view(view_of(instr))) return false;
    const auto [known, fresh] = made_.emplace(text_of(instr), out);
    if (!fresh) {
      same_.set(out, known->second);
      return true;
    }
    if (is_reshape(instr)) reshapes_[out] = from;
    return false;
  }

  Program& program_;
  const Storage storage_;
  Substitution same_;
  std::map<int, int> reshapes_;      // of this segment: result → what it looks at
  std::map<std::string, int> made_;  // of this segment: text of a view → its slot
};

}  // namespace

std::string_view block_of(std::string_view module) {
  size_t end = 0;
  for (size_t start = 0; start < module.size();) {
    const size_t stop = std::min(module.find('.', start), module.size());
    if (module.substr(start, stop - start).find_first_not_of("0123456789") ==
        std::string_view::npos)
      end = stop;
    start = stop + 1;
  }
  return module.substr(0, end);
}

std::map<int, int> fold_views(Program& program) {
  return Folder(program).run();
}

}  // namespace nns::lower
