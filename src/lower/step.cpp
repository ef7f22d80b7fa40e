#include "lower/step.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

size_t place(const Program& program, int slot) {
  const auto it = std::find(program.parameters.begin(), program.parameters.end(), slot);
  NNS_CHECK(it != program.parameters.end(), "slot {} is no parameter", slot);
  return static_cast<size_t>(it - program.parameters.begin());
}

Share share_of(const Program& program, int slot) {
  return program.shares.empty() ? Share{} : program.shares.at(place(program, slot));
}

// By how many ranks the gradients of a set are held.
std::set<int> holders_of(const Program& program, const GradientSet& set) {
  std::set<int> out;
  for (int slot : set.parameters) out.insert(share_of(program, slot).holders);
  return out;
}

// The ranks over which a program gathers a weight that rests in shards.
std::optional<std::vector<int>> gathered_over(const Program& program, int slot) {
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.op != "comm::all_gather" || reads(instr).at(0) != slot) continue;
      const Shape& ranks = argument<Shape>(instr, "group");
      return std::vector<int>(ranks.begin(), ranks.end());
    }
  return std::nullopt;
}

// The groups that gather weights of a set.
std::set<std::vector<int>> gathers_of(const Program& program, const GradientSet& set) {
  std::set<std::vector<int>> out;
  for (int slot : set.parameters)
    if (share_of(program, slot).sharded)
      if (const auto ranks = gathered_over(program, slot)) out.insert(*ranks);
  return out;
}

class StepChecker {
 public:
  explicit StepChecker(const Program& program)
      : program_(program), done_(program.sets.size()), counted_(program.sets.size()) {}

  void run() {
    check_sets();
    for (const StepInstr& instr : program_.step) {
      if (instr.set < 0 || static_cast<size_t>(instr.set) >= done_.size())
        broken("{} of set {}; there are {}", name_of(instr.kind), instr.set, done_.size());
      check_instr(instr);
    }
    for (size_t k = 0; k < done_.size(); ++k) check_complete(static_cast<int>(k));
  }

 private:
  template <class... A>
  [[noreturn]] static void broken(fmt::format_string<A...> f, A&&... args) {
    fail(ErrorKind::internal, "[lower.step] {}", fmt::format(f, std::forward<A>(args)...));
  }
  const GradientSet& set_of(int k) const { return program_.sets[static_cast<size_t>(k)]; }
  std::set<StepKind>& done(int k) { return done_[static_cast<size_t>(k)]; }

  // "gradients of set 1 (a … b)"
  std::string name(int k) const {
    const auto& slots = set_of(k).parameters;
    if (slots.empty()) return fmt::format("set {}", k);
    return fmt::format("set {} ({} … {})", k, program_.slot(slots.front()).name,
                       program_.slot(slots.back()).name);
  }

  void check_sets() const {
    std::set<int> seen;
    for (size_t k = 0; k < program_.sets.size(); ++k)
      for (int slot : program_.sets[k].parameters) {
        const std::string& parameter = program_.slot(slot).name;
        if (!seen.insert(slot).second) broken("the gradient of {} is in two sets", parameter);
        const auto& ranks = share_of(program_, slot).reduce;
        if (ranks != program_.sets[k].ranks)
          broken("set {} sums the gradient of {} over ranks {}; its addends are on ranks {}", k,
                 parameter, fmt::join(program_.sets[k].ranks, ","), fmt::join(ranks, ","));
      }
    for (const Segment& segment : program_.segments)
      for (const Instr& instr : segment.instrs)
        if (instr.kind == InstrKind::accumulate && !seen.contains(instr.target))
          broken("the gradient of {} is in no set", program_.slot(instr.target).name);
  }

  void after(const StepInstr& instr, StepKind before) {
    if (!done(instr.set).contains(before))
      broken("{} of {} before its {}", name_of(instr.kind), name(instr.set), name_of(before));
  }
  void before(const StepInstr& instr, StepKind later) {
    for (const auto& kinds : done_)
      if (kinds.contains(later))
        broken("{} of {} after {}", name_of(instr.kind), name(instr.set), name_of(later));
  }
  void once(const StepInstr& instr) {
    if (!done(instr.set).insert(instr.kind).second)
      broken("{} of {} twice", name_of(instr.kind), name(instr.set));
  }

  void check_instr(const StepInstr& instr) {
    const GradientSet& set = set_of(instr.set);
    switch (instr.kind) {
      case StepKind::sum:
        if (instr.ranks != set.ranks || instr.ranks.empty())
          broken("sum of {} over ranks {}; its addends are on ranks {}", name(instr.set),
                 fmt::join(instr.ranks, ","), fmt::join(set.ranks, ","));
        before(instr, StepKind::scale);
        return once(instr);
      case StepKind::scale:
        if (!set.ranks.empty()) after(instr, StepKind::sum);
        before(instr, StepKind::norm);
        return once(instr);
      case StepKind::norm:
        after(instr, StepKind::scale);
        before(instr, StepKind::clip);
        return count(instr);
      case StepKind::clip:
        for (int k = 0; k < static_cast<int>(done_.size()); ++k) check_counted(k);
        before(instr, StepKind::update);
        return once(instr);
      case StepKind::update:
        after(instr, StepKind::clip);
        return once(instr);
      case StepKind::gather:
        after(instr, StepKind::update);
        if (!gathers_of(program_, set).contains(instr.ranks))
          broken("gather of {} over ranks {}; no weight of it rests in shards of these",
                 name(instr.set), fmt::join(instr.ranks, ","));
        if (!gathered_.emplace(instr.set, instr.ranks).second)
          broken("gather of {} twice", name(instr.set));
        return;
    }
  }

  void count(const StepInstr& instr) {
    if (!holders_of(program_, set_of(instr.set)).contains(instr.holders))
      broken("norm of {} takes gradients that {} ranks hold; there are none", name(instr.set),
             instr.holders);
    if (!counted_[static_cast<size_t>(instr.set)].insert(instr.holders).second)
      broken("{}: gradients that {} ranks hold count twice in the norm", name(instr.set),
             instr.holders);
    done(instr.set).insert(StepKind::norm);
  }

  void check_counted(int k) const {
    for (int holders : holders_of(program_, set_of(k)))
      if (!counted_[static_cast<size_t>(k)].contains(holders))
        broken("{}: gradients that {} ranks hold are not in the norm", name(k), holders);
  }

  void check_complete(int k) {
    check_counted(k);
    std::vector<StepKind> kinds{StepKind::scale, StepKind::clip, StepKind::update};
    if (!set_of(k).ranks.empty()) kinds.insert(kinds.begin(), StepKind::sum);
    for (StepKind kind : kinds)
      if (!done(k).contains(kind)) broken("no {} of {}", name_of(kind), name(k));
    for (int slot : set_of(k).parameters) {
      if (!share_of(program_, slot).sharded) continue;
      const auto ranks = gathered_over(program_, slot);
      if (ranks && !gathered_.contains({k, *ranks}))
        broken("{} rests in shards, and the step of {} does not gather it",
               program_.slot(slot).name, name(k));
    }
  }

  const Program& program_;
  std::vector<std::set<StepKind>> done_;  // by set
  std::vector<std::set<int>> counted_;    // by set: numbers of holders that are in the norm
  std::set<std::pair<int, std::vector<int>>> gathered_;
};

}  // namespace

OptimizerStep make_step(const Program& program) {
  OptimizerStep step;
  const int n = static_cast<int>(program.sets.size());
  const auto set = [&](int k) -> const GradientSet& {
    return program.sets[static_cast<size_t>(k)];
  };
  for (int k = 0; k < n; ++k)
    if (!set(k).ranks.empty()) step.push_back({StepKind::sum, k, set(k).ranks, 1});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::scale, k, {}, 1});
  for (int k = 0; k < n; ++k)
    for (int holders : holders_of(program, set(k)))
      step.push_back({StepKind::norm, k, {}, holders});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::clip, k, {}, 1});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::update, k, {}, 1});
  for (int k = 0; k < n; ++k)
    for (const auto& ranks : gathers_of(program, set(k)))
      step.push_back({StepKind::gather, k, ranks, 1});
  return step;
}

void check_step(const Program& program) {
  StepChecker(program).run();
}

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::sum:
      return "sum";
    case StepKind::scale:
      return "scale";
    case StepKind::norm:
      return "norm";
    case StepKind::clip:
      return "clip";
    case StepKind::update:
      return "update";
    case StepKind::gather:
      return "gather";
  }
  return "?";
}

std::string to_text(const OptimizerStep& step) {
  std::string text;
  for (const StepInstr& instr : step) {
    text += fmt::format("  {} set {}", name_of(instr.kind), instr.set);
    if (!instr.ranks.empty()) text += fmt::format(" over {}", fmt::join(instr.ranks, " "));
    if (instr.kind == StepKind::norm) text += fmt::format(" held by {}", instr.holders);
    text += "\n";
  }
  return text;
}

}  // namespace nns::lower
