// Repeated blocks. Modules in a list have numbers in their paths ("h.0", "h.1"): instances whose
// instructions are equal up to the number and the names of slots become one body. What passes
// between stages belongs to no block, so that the layers beside a cut are like the others.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

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

// Whether a call belongs to no block. Devices that pass parts on in a ring are those of one stage.
bool stands_apart(const Instr& instr) {
  using operators::Communication;
  const Communication kind = communication_of(instr);
  return has_effect(instr) && kind != Communication::rotate && kind != Communication::zigzag;
}

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

// By slot: modules whose instructions read it in the segment that makes it, and in later segments.
struct Readers {
  std::vector<std::set<std::string_view>> here, later;

  explicit Readers(const Program& program)
      : here(program.slots.size()), later(program.slots.size()) {
    std::vector<const Segment*> maker(program.slots.size(), nullptr);
    for (const Segment& segment : program.segments)
      for (const Instr& instr : segment.instrs) {
        for (int slot : reads(instr)) {
          const size_t s = static_cast<size_t>(slot);
          (maker[s] == &segment ? here : later)[s].insert(instr.module);
        }
        for (int out : instr.outs)
          if (out >= 0) maker[static_cast<size_t>(out)] = &segment;
      }
  }
};

// What the forward instance at a path keeps for its backward: (path, slot) → body and number there.
using Keepers = std::map<std::pair<std::string, int>, std::string>;

// Text of an instance in which slots are numbers of first occurrence.
class Form {
 public:
  // `last_use` is by slot.
  Form(const Program& program, const Segment& segment, const Instance& instance,
       const std::vector<size_t>& last_use, const Readers& readers, const Keepers& keepers)
      : program_(program), path_(instance.path()), keepers_(keepers), readers_(readers) {
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
        const bool later = last_use[static_cast<size_t>(out)] >= instance.last;
        text_ += fmt::format("->{}{}{}", name_slot_text(out), later ? "!" : "",
                             is_kept_for_others(out) ? "e" : "");
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

  bool is_own(std::string_view module) const {
    return module == path_ || below_path(module, path_);
  }
  // Whether this instance's own backward reads the slot.
  bool is_kept(int slot) const {
    const auto& later = readers_.later[static_cast<size_t>(slot)];
    return std::any_of(later.begin(), later.end(), [&](auto m) { return is_own(m); });
  }
  // Whether only this instance has the slot, but another's backward reads it.
  bool is_kept_for_others(int slot) const {
    const auto& here = readers_.here[static_cast<size_t>(slot)];
    const auto& later = readers_.later[static_cast<size_t>(slot)];
    return std::all_of(here.begin(), here.end(), [&](auto m) { return is_own(m); }) &&
           std::any_of(later.begin(), later.end(), [&](auto m) { return !is_own(m); });
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
      case SlotRole::cast:
        return "K:" + relative(slot.name);
      case SlotRole::input:
        return fmt::format("I:{}", id);
      default:
        if (const auto kept = keepers_.find({path_, id}); kept != keepers_.end())
          return "S:" + kept->second;
        return fmt::format("{}:{}{}", number_of(id), to_string(slot.type), is_kept(id) ? "s" : "");
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
  const Readers& readers_;
  std::map<int, int> number_;
  std::string text_;
};

class Finder {
 public:
  Finder(const Program& program, Segment& segment, const Readers& readers,
         std::map<std::string, int>& bodies, Keepers& keepers)
      : program_(program),
        segment_(segment),
        readers_(readers),
        bodies_(bodies),
        keepers_(keepers),
        last_use_(program.slots.size(), 0) {
    for (size_t i = 0; i < segment.instrs.size(); ++i)
      for (int slot : reads(segment.instrs[i])) last_use_[static_cast<size_t>(slot)] = i;
    for (int slot : segment.outputs) last_use_[static_cast<size_t>(slot)] = segment.instrs.size();
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
      const Instr& instr = segment_.instrs[i];
      if (stands_apart(instr)) continue;
      const auto place = place_of(instr.module, depth);
      if (!place) continue;
      if (!instances.empty() && instances.back().last == i && instances.back().place == *place)
        instances.back().last = i + 1;
      else
        instances.push_back({*place, i, i + 1});
    }
    std::vector<Form> forms;
    std::map<std::string_view, int> count;
    std::map<std::string, int> of_path;  // one that runs in pieces, or twice, is not marked
    for (const Instance& instance : instances) {
      forms.emplace_back(program_, segment_, instance, last_use_, readers_, keepers_);
      ++of_path[instance.path()];
    }
    for (const Form& form : forms) ++count[form.text()];
    for (size_t k = 0; k < instances.size(); ++k) {
      const Instance& instance = instances[k];
      if (count[forms[k].text()] >= 2 && of_path[instance.path()] == 1 &&
          instance.last - instance.first >= kLeastSize)
        mark(instance, forms[k]);
      else
        search(instance.first, instance.last, depth + 1);
    }
  }

  void mark(const Instance& instance, const Form& form) {
    const int next = static_cast<int>(bodies_.size());
    const int body = bodies_.emplace(segment_.name + form.text(), next).first->second;
    segment_.blocks.push_back({body, instance.first, instance.last, instance.path()});
    for (const auto& [slot, number] : form.numbers())
      found_[{instance.path(), slot}] = fmt::format("{}:{}", body, number);
  }

  const Program& program_;
  Segment& segment_;
  const Readers& readers_;
  std::map<std::string, int>& bodies_;
  Keepers& keepers_;
  Keepers found_;
  std::vector<size_t> last_use_;
};

}  // namespace

void find_blocks(Program& program) {
  std::map<std::string, int> bodies;
  Keepers keepers;
  const Readers readers(program);
  for (Segment& segment : program.segments)
    Finder(program, segment, readers, bodies, keepers).run();
}

}  // namespace nns::lower
