#include "lower/holes.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"

namespace nns::lower {
namespace {

constexpr int64_t kFirst = -(int64_t{3} << 60), kStride = int64_t{1} << 20;
constexpr int64_t kLeast = int64_t{1} << 60, kMost = int64_t{7} << 60;

// The hole that an integer stands for.
std::optional<size_t> hole_at(int64_t x, const Holes& holes) {
  const int64_t size = x < 0 ? -x : x;
  if (x == INT64_MIN || size < kLeast || size > kMost) return std::nullopt;
  const int64_t from = x - kFirst;
  NNS_CHECK(
      from >= 0 && from % kStride == 0 && from / kStride < static_cast<int64_t>(holes.list.size()),
      "{} was computed from a number that every rank has its own of", x);
  return static_cast<size_t>(from / kStride);
}

class Filler {
 public:
  Filler(const Holes& holes, size_t row, int first_rank)
      : holes_(holes), row_(row), first_rank_(first_rank) {}

  // Whether there was anything to fill in.
  bool fill(Arg& arg) const {
    if (auto* x = std::get_if<int64_t>(&arg)) {
      const auto hole = hole_at(*x, holes_);
      if (hole) *x = number(*hole);
      return hole.has_value();
    }
    auto* list = std::get_if<Shape>(&arg);
    if (list == nullptr) return false;
    bool any = false;
    for (size_t i = 0; i < list->size(); ++i) {
      const auto hole = hole_at((*list)[i], holes_);
      if (!hole) continue;
      any = true;
      if (holes_.list[*hole].kind != Hole::Kind::number) {
        NNS_CHECK(list->size() == 1, "a list of {} with another inside", list->size());
        *list = whole(holes_.list[*hole]);
        return true;
      }
      (*list)[i] = number(*hole);
    }
    return any;
  }

 private:
  int64_t number(size_t hole) const {
    NNS_CHECK(holes_.list[hole].kind == Hole::Kind::number, "a list in place of a number");
    return holes_.list[hole].values.at(row_).at(0);
  }
  Shape whole(const Hole& hole) const {
    Shape out = hole.values.at(row_);
    if (hole.kind == Hole::Kind::list) return out;
    const size_t step = hole.kind == Hole::Kind::ranks ? 1 : 1 + 2 * hole.dims;
    for (size_t i = 0; i < out.size(); i += step) out[i] += first_rank_;
    return out;
  }

  const Holes& holes_;
  size_t row_;
  int first_rank_;
};

// Numbers of first occurrence.
class Numbers {
 public:
  int of(const std::string& text) {
    return known_.emplace(text, static_cast<int>(known_.size())).first->second;
  }

 private:
  std::map<std::string, int> known_;
};

}  // namespace

int64_t mark_of(size_t index) {
  return kFirst + static_cast<int64_t>(index) * kStride;
}

void fill(Program& program, const Holes& holes, int device, int first_rank) {
  if (holes.list.empty()) return;
  const auto at = std::find(holes.devices.begin(), holes.devices.end(), device);
  NNS_CHECK(at != holes.devices.end(), "device {} is in another class", device);
  const Filler filler(holes, static_cast<size_t>(at - holes.devices.begin()), first_rank);
  for (Segment& segment : program.segments)
    for (Instr& instr : segment.instrs)
      for (NamedArg& a : instr.args) filler.fill(a.value);
}

Pattern pattern_of(const Program& program, const Holes& holes) {
  Pattern out;
  out.by_device.resize(holes.devices.size());
  if (holes.list.empty()) return out;
  // Texts of the arguments of each operator and name, each once.
  struct Group {
    std::map<std::string, Arg> args;
    bool open = false;
  };
  std::map<std::pair<std::string_view, std::string_view>, Group> groups;
  const Filler first(holes, 0, 0);
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      for (const NamedArg& a : instr.args) {
        if (!std::holds_alternative<int64_t>(a.value) && !std::holds_alternative<Shape>(a.value))
          continue;
        Group& group = groups[{instr.op, a.name}];
        if (!group.args.emplace(graph::to_text(a.value), a.value).second) continue;
        Arg filled = a.value;
        group.open = first.fill(filled) || group.open;
      }
  for (const auto& [key, group] : groups) {
    if (!group.open) continue;
    Numbers marked;
    for (const auto& [text, arg] : group.args) out.marked.push_back(marked.of(text));
    for (size_t row = 0; row < holes.devices.size(); ++row) {
      Numbers numbers;
      for (const auto& [text, arg] : group.args) {
        Arg filled = arg;
        Filler(holes, row, 0).fill(filled);
        out.by_device[row].push_back(numbers.of(graph::to_text(filled)));
      }
    }
  }
  return out;
}

}  // namespace nns::lower
