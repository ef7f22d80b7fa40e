// Repeated blocks. Modules in a list have numbers in their paths ("h.0", "h.1"): neighbouring
// instances whose instructions are equal up to the number and the names of slots become one body.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "lower/block.h"
#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {

bool below_path(std::string_view name, std::string_view path) {
  return name.size() > path.size() && name.starts_with(path) &&
         (name[path.size()] == '.' || name[path.size()] == ':');
}

namespace {

constexpr size_t kLeastSize = 4;  // instructions; smaller bodies read better in place

// The part of a module path up to its `depth`-th numbered component: list and number.
struct Place {
  std::string list;
  int64_t index = 0;
  bool operator==(const Place&) const = default;
};

std::optional<Place> place_of(const std::string& module, int depth) {
  size_t start = 0;
  while (start < module.size()) {
    const size_t end = std::min(module.find('.', start), module.size());
    const std::string part = module.substr(start, end - start);
    const bool number = part.find_first_not_of("0123456789") == std::string::npos;
    if (number && start > 0 && part.size() < 10 && depth-- == 0)
      return Place{module.substr(0, start - 1), std::stoll(part)};
    start = end + 1;
  }
  return std::nullopt;
}

struct Instance {
  Place place;
  size_t first, last;
  std::string path() const { return fmt::format("{}.{}", place.list, place.index); }
};

// What the forward instance at a path keeps for its backward: (path, slot) → body and number there.
using Keepers = std::map<std::pair<std::string, int>, std::string>;

// Text of an instance in which slots are numbers of first occurrence.
class Form {
 public:
  Form(const Program& program, const Segment& segment, const Instance& instance,
       const std::vector<size_t>& last_use, const Keepers& keepers)
      : program_(program), path_(instance.path()), keepers_(keepers) {
    saved_.insert(segment.saved_out.begin(), segment.saved_out.end());
    outs_.insert(segment.outputs.begin(), segment.outputs.end());
    for (size_t i = instance.first; i < instance.last; ++i) {
      const Instr& instr = segment.instrs[i];
      text_ += fmt::format("{} {} {} {}:{}\n", static_cast<int>(instr.kind), instr.op,
                           relative(instr.module), instr.loc.file, instr.loc.line);
      for (const NamedArg& a : instr.args) {
        text_ += a.name + "=";
        argument(a.value);
      }
      if (instr.target >= 0) name_slot(instr.target);
      for (int out : instr.outs) {
        if (out < 0) {
          text_ += "_";
          continue;
        }
        number_of(out);
        const bool later =
            last_use[static_cast<size_t>(out)] >= instance.last || outs_.contains(out);
        text_ += fmt::format("->{}{}{}", name_slot_text(out), later ? "!" : "",
                             saved_.contains(out) ? "s" : "");
      }
    }
  }

  const std::string& text() const { return text_; }
  const std::map<int, int>& numbers() const { return number_; }

 private:
  std::string relative(const std::string& name) const {
    if (name == path_) return "{}";
    return below_path(name, path_) ? "{}" + name.substr(path_.size()) : name;
  }

  int number_of(int slot) {
    return number_.emplace(slot, static_cast<int>(number_.size())).first->second;
  }

  std::string name_slot_text(int id) {
    const Slot& slot = program_.slot(id);
    switch (slot.role) {
      case SlotRole::parameter:
        return "P:" + relative(slot.name);
      case SlotRole::buffer:
        return "B:" + relative(slot.name);
      case SlotRole::constant:
        return fmt::format("C:{}", id);
      case SlotRole::input:
        return fmt::format("I:{}", id);
      default:
        if (const auto kept = keepers_.find({path_, id}); kept != keepers_.end())
          return "S:" + kept->second;
        return fmt::format("{}:{}{}", number_of(id), to_string(slot.type),
                           saved_.contains(id) ? "s" : "");
    }
  }
  void name_slot(int id) { text_ += name_slot_text(id) + ";"; }

  void argument(const Arg& arg) {
    if (const auto* ref = std::get_if<Ref>(&arg)) {
      if (ref->id < 0)
        text_ += "nil;";
      else
        name_slot(ref->id);
    } else if (const auto* list = std::get_if<std::vector<Ref>>(&arg)) {
      text_ += "[";
      for (Ref ref : *list) argument(ref);
      text_ += "]";
    } else if (const auto* s = std::get_if<std::string>(&arg)) {
      text_ += "'" + relative(*s) + "'";
    } else {
      text_ += graph::to_text(arg) + ";";
    }
  }

  const Program& program_;
  std::string path_;
  const Keepers& keepers_;
  std::set<int> saved_, outs_;
  std::map<int, int> number_;
  std::string text_;
};

class Finder {
 public:
  Finder(const Program& program, Segment& segment, std::map<std::string, int>& bodies,
         Keepers& keepers)
      : program_(program),
        segment_(segment),
        bodies_(bodies),
        keepers_(keepers),
        last_use_(program.slots.size(), 0) {
    for (size_t i = 0; i < segment.instrs.size(); ++i)
      for (int slot : reads(segment.instrs[i])) last_use_[static_cast<size_t>(slot)] = i;
  }

  void run() {
    search(0, segment_.instrs.size(), 0);
    keepers_.merge(found_);
  }

 private:
  void search(size_t first, size_t last, int depth) {
    if (depth > 4) return;
    std::vector<Instance> instances;
    for (size_t i = first; i < last; ++i) {
      const auto place = place_of(segment_.instrs[i].module, depth);
      if (!place) continue;
      if (!instances.empty() && instances.back().last == i && instances.back().place == *place)
        instances.back().last = i + 1;
      else
        instances.push_back({*place, i, i + 1});
    }
    std::vector<std::string> forms;
    for (const Instance& instance : instances)
      forms.push_back(Form(program_, segment_, instance, last_use_, keepers_).text());
    for (size_t a = 0; a < instances.size();) {
      size_t b = a + 1;
      while (b < instances.size() && follows(instances[b - 1], instances[b]) &&
             forms[b] == forms[a])
        ++b;
      if (b - a >= 2 && instances[a].last - instances[a].first >= kLeastSize)
        mark(instances, a, b, forms[a]);
      else
        for (size_t k = a; k < b; ++k) search(instances[k].first, instances[k].last, depth + 1);
      a = b;
    }
  }

  static bool follows(const Instance& a, const Instance& b) {
    return a.last == b.first && a.place.list == b.place.list &&
           std::abs(a.place.index - b.place.index) == 1;
  }

  void mark(const std::vector<Instance>& instances, size_t a, size_t b, const std::string& form) {
    const int next = static_cast<int>(bodies_.size());
    const int body = bodies_.emplace(segment_.name + form, next).first->second;
    for (size_t k = a; k < b; ++k) {
      segment_.blocks.push_back({body, instances[k].first, instances[k].last, instances[k].path()});
      const Form again(program_, segment_, instances[k], last_use_, keepers_);
      for (const auto& [slot, number] : again.numbers())
        found_[{instances[k].path(), slot}] = fmt::format("{}:{}", body, number);
    }
  }

  const Program& program_;
  Segment& segment_;
  std::map<std::string, int>& bodies_;
  Keepers& keepers_;
  Keepers found_;
  std::vector<size_t> last_use_;
};

}  // namespace

void find_blocks(Program& program) {
  std::map<std::string, int> bodies;
  Keepers keepers;
  for (Segment& segment : program.segments) Finder(program, segment, bodies, keepers).run();
}

}  // namespace nns::lower
