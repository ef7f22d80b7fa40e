// Loops: instructions that repeat in one segment, such as the unrolled time steps of a recurrent
// network. Candidates are distances at which the instructions are alike; what is marked was
// compared operand by operand, so that codegen can write one turn for all.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "lower/passes.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

constexpr size_t kLeastTurns = 8;      // fewer are read as well one by one
constexpr size_t kLongestTurn = 2000;  // instructions; LuaJIT bounds the length of a loop
constexpr int kCandidates = 16;        // distances that are tried at one place

// Of "drop:dropout#12": the text before its last number, and the number.
struct NumberedText {
  std::string_view before;
  std::optional<int64_t> number;
};
NumberedText split_number(const std::string& text) {
  size_t at = text.size();
  while (at > 0 && text.size() - at < 10 && text[at - 1] >= '0' && text[at - 1] <= '9') --at;
  if (at == text.size() || (text[at] == '0' && at + 1 < text.size())) return {text, std::nullopt};
  return {std::string_view(text).substr(0, at), std::stoll(text.substr(at))};
}

// The integers of a call that may grow from turn to turn: numbers, lists of numbers, ends of texts.
std::vector<int64_t> numbers_of(const Instr& instr) {
  std::vector<int64_t> numbers;
  for (const NamedArg& a : instr.args) {
    if (const auto* i = std::get_if<int64_t>(&a.value)) numbers.push_back(*i);
    if (const auto* list = std::get_if<std::vector<int64_t>>(&a.value))
      numbers.insert(numbers.end(), list->begin(), list->end());
    if (const auto* text = std::get_if<std::string>(&a.value))
      if (const auto n = split_number(*text).number) numbers.push_back(*n);
  }
  return numbers;
}

// Hash of all that instructions of one place in a turn have in common.
class Likeness {
 public:
  explicit Likeness(const Program& program) : program_(program) {}

  uint64_t of(const Instr& instr) {
    text_.clear();
    add(fmt::format("{} {} {} {}:{}", static_cast<int>(instr.kind), instr.op, instr.module,
                    instr.loc.file, instr.loc.line));
    if (instr.target >= 0) add(program_.slot(instr.target).name);
    if (instr.into >= 0) add("into " + program_.slot(instr.into).name);
    for (const NamedArg& a : instr.args) {
      add(a.name);
      std::visit([&](const auto& value) { argument(value); }, a.value);
    }
    for (int out : instr.outs) add(out < 0 ? "_" : to_string(program_.slot(out).type));
    return hash_bytes(text_);
  }

 private:
  void add(std::string_view text) {
    text_ += text;
    text_ += '\n';
  }
  void argument(Ref ref) {
    if (ref.id < 0) return add("nil");
    const Slot& slot = program_.slot(ref.id);
    const bool made = is_local(program_, ref.id);
    add(made ? to_string(slot.type) : fmt::format("{} {}", static_cast<int>(slot.role), ref.id));
  }
  void argument(const std::vector<Ref>& list) {
    for (Ref ref : list) argument(ref);
  }
  void argument(int64_t) { add("integer"); }
  void argument(const std::vector<int64_t>& list) { add(fmt::format("{} integers", list.size())); }
  void argument(const std::string& text) {
    const NumberedText parts = split_number(text);
    add(parts.before);
    add(parts.number ? "#" : "");
  }
  template <class T>
  void argument(const T& value) {
    add(graph::to_text(Arg(value)));
  }

  const Program& program_;
  std::string text_;
};

class Finder {
 public:
  Finder(const Program& program, Segment& segment)
      : segment_(segment), made_(program.slots.size(), kNowhere) {
    Likeness likeness(program);
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      alike_.push_back(likeness.of(instr));
      reads_.push_back(reads(instr));
      for (int out : instr.outs)
        if (out >= 0) made_[static_cast<size_t>(out)] = i;
    }
    next_.assign(segment.instrs.size(), kNowhere);
  }

  void run() {
    size_t from = 0;
    for (const BlockRun& block : segment_.blocks) {
      search(from, block.first);
      search(block.first, block.last);
      from = block.last;
    }
    search(from, segment_.instrs.size());
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;

  void search(size_t first, size_t last) {
    stretch_.clear();
    std::unordered_map<uint64_t, size_t> seen;
    for (size_t i = last; i-- > first;) {
      const auto it = seen.find(alike_[i]);
      next_[i] = it == seen.end() ? kNowhere : it->second;
      seen[alike_[i]] = i;
    }
    for (size_t i = first; i < last;) {
      const auto loop = loop_at(i, last);
      if (loop) segment_.loops.push_back(*loop);
      i = loop ? loop->last() : i + 1;
    }
  }

  // The loop that begins at instruction `i` and covers most.
  std::optional<Loop> loop_at(size_t i, size_t last) {
    std::vector<Loop> candidates;
    size_t at = i;
    for (int k = 0; k < kCandidates; ++k) {
      at = next_[at];
      if (at == kNowhere || at - i > kLongestTurn) break;
      const size_t size = at - i;
      if (const size_t count = alike_from(i, size, last) / size + 1; count >= kLeastTurns)
        candidates.push_back({i, size, count});
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const Loop& a, const Loop& b) {
      return a.size * a.count > b.size * b.count;
    });
    for (Loop loop : candidates) {
      turn(loop);
      loop.count = equal_turns(loop);
      if (loop.count >= kLeastTurns) return loop;
    }
    return std::nullopt;
  }

  // How many instructions from `i` on are like those at a distance.
  size_t alike_from(size_t i, size_t distance, size_t last) {
    auto& [begin, end] = stretch_[distance];
    if (i < begin || i >= end) {
      begin = end = i;
      while (end + distance < last && alike_[end] == alike_[end + distance]) ++end;
    }
    return end - i;
  }

  // Lets turns begin where the fewest tensors pass from one to the next.
  void turn(Loop& loop) const {
    const size_t start = loop.first + loop.size * (loop.count / 2), end = start + loop.size;
    std::map<int, size_t> last_use;
    for (size_t i = start; i < std::min(loop.last(), end + loop.size); ++i)
      for (int slot : reads_[i]) last_use[slot] = i;
    std::vector<int> change(loop.size + 1, 0);
    for (const auto& [slot, use] : last_use) {
      const size_t made = made_[static_cast<size_t>(slot)];
      if (made == kNowhere || made < loop.first) continue;
      const size_t from = std::max(made + 1, start), to = std::min(use, end - 1);
      if (from > to) continue;
      ++change[from - start];
      --change[to + 1 - start];
    }
    int passing = 0, fewest = INT32_MAX;
    size_t best = 0;
    for (size_t offset = 0; offset < loop.size; ++offset) {
      passing += change[offset];
      if (passing < fewest) {
        fewest = passing;
        best = offset;
      }
    }
    if (best == 0) return;
    loop.first += best;
    --loop.count;
  }

  // Where an operand of a turn comes from: turns back (0 or 1) and the place there, or outside.
  struct Origin {
    bool outside = true;
    size_t back = 0, place = 0, out = 0;
    bool operator==(const Origin&) const = default;
  };
  Origin origin(const Loop& loop, size_t turn, int slot) const {
    const size_t made = made_[static_cast<size_t>(slot)];
    if (made == kNowhere || made < loop.first) return {};
    const auto& outs = segment_.instrs[made].outs;
    return {false, turn - (made - loop.first) / loop.size, (made - loop.first) % loop.size,
            static_cast<size_t>(std::find(outs.begin(), outs.end(), slot) - outs.begin())};
  }

  // How many turns from the first on are one loop.
  size_t equal_turns(const Loop& loop) const {
    std::map<std::pair<size_t, size_t>, int> begun;  // what passes on → what the first turn reads
    for (size_t p = 0; p < loop.size; ++p) {
      const auto& first = reads_[loop.first + p];
      const auto& second = reads_[loop.first + loop.size + p];
      if (first.size() != second.size()) return 1;
      for (size_t q = 0; q < first.size(); ++q) {
        const Origin a = origin(loop, 0, first[q]), b = origin(loop, 1, second[q]);
        if (b.outside || b.back == 0) {
          if (a != b) return 1;
          continue;
        }
        if (b.back > 1 || !a.outside) return 1;
        const auto [it, fresh] = begun.emplace(std::pair(b.place, b.out), first[q]);
        if (!fresh && it->second != first[q]) return 1;
      }
    }
    for (size_t turn = 1; turn < loop.count; ++turn)
      for (size_t p = 0; p < loop.size; ++p)
        if (!is_equal(loop, turn, p)) return turn;
    return loop.count;
  }

  bool is_equal(const Loop& loop, size_t turn, size_t p) const {
    const size_t one = loop.first + loop.size + p, here = loop.first + turn * loop.size + p;
    if (reads_[here].size() != reads_[one].size()) return false;
    for (size_t q = 0; q < reads_[here].size(); ++q)
      if (origin(loop, turn, reads_[here][q]) != origin(loop, 1, reads_[one][q])) return false;
    const auto a = numbers_of(segment_.instrs[loop.first + p]),
               b = numbers_of(segment_.instrs[one]), c = numbers_of(segment_.instrs[here]);
    if (a.size() != c.size() || b.size() != c.size()) return false;
    for (size_t n = 0; n < c.size(); ++n) {
      const bool to_the_end = b[n] == INT64_MAX || a[n] == INT64_MAX;
      if (to_the_end ? a[n] != c[n] : c[n] - a[n] != static_cast<int64_t>(turn) * (b[n] - a[n]))
        return false;
    }
    return true;
  }

  Segment& segment_;
  std::vector<uint64_t> alike_;
  std::vector<std::vector<int>> reads_;
  std::vector<size_t> made_, next_;  // by slot; by instruction: the next that is alike
  std::unordered_map<size_t, std::pair<size_t, size_t>> stretch_;  // by distance: what is alike
};

}  // namespace

void find_loops(Program& program) {
  for (Segment& segment : program.segments) Finder(program, segment).run();
}

}  // namespace nns::lower
