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

// What the step has to know of each parameter.
class Facts {
 public:
  explicit Facts(const Program& program) {
    for (size_t i = 0; i < program.shares.size(); ++i)
      shares_[program.parameters[i]] = &program.shares[i];
    for (const Segment& segment : program.segments)
      for (const Instr& instr : segment.instrs) {
        if (communication_of(instr) != operators::Communication::all_gather) continue;
        const auto share = shares_.find(weight_of(program, reads(instr).at(0)));
        if (share == shares_.end() || !share->second->sharded()) continue;
        const Shape& ranks = argument<Shape>(instr, "group");
        gathered_.try_emplace(share->first, ranks.begin(), ranks.end());
      }
  }

  // The ranks that hold addends of a gradient; empty: this one only.
  std::vector<int> summed_over(int slot) const {
    const auto it = shares_.find(slot);
    return it == shares_.end() ? std::vector<int>{} : it->second->reduce;
  }
  // The ranks over which the program gathers a weight that rests in shards.
  std::optional<std::vector<int>> gathered_over(int slot) const {
    const auto it = gathered_.find(slot);
    return it == gathered_.end() ? std::nullopt : std::optional(it->second);
  }
  // By how many ranks the gradients of a set are held.
  std::set<int> holders_of(const GradientSet& set) const {
    std::set<int> out;
    for (int slot : set.parameters) {
      const auto it = shares_.find(slot);
      out.insert(it == shares_.end() ? 1 : it->second->holders);
    }
    return out;
  }
  // How states of a weight rest in shards; nullptr: they do not.
  const Share* cut(int slot) const {
    const auto it = shares_.find(slot);
    return it == shares_.end() || it->second->zero == plan::Zero::none ? nullptr : it->second;
  }
  // The groups that gather weights of a set: those that are whole again after the step, and those
  // that programs gather.
  std::set<std::vector<int>> gathers_of(const GradientSet& set) const {
    std::set<std::vector<int>> out;
    for (int slot : set.parameters)
      if (const Share* share = cut(slot); share != nullptr && !share->sharded())
        out.insert(share->over);
    for (int slot : set.parameters)
      if (const auto ranks = gathered_over(slot)) out.insert(*ranks);
    return out;
  }

 private:
  std::map<int, const Share*> shares_;
  std::map<int, std::vector<int>> gathered_;
};

class StepChecker {
 public:
  explicit StepChecker(const Program& program)
      : program_(program),
        facts_(program),
        done_(program.sets.size()),
        counted_(program.sets.size()) {}

  void run() {
    check_sets();
    for (const Segment& segment : program_.segments) check_starts(segment);
    if (program_.step.empty()) return;  // it stands in the first graph's program
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
        const auto ranks = facts_.summed_over(slot);
        if (ranks != program_.sets[k].ranks)
          broken("set {} sums the gradient of {} over ranks {}; its addends are on ranks {}", k,
                 parameter, fmt::join(program_.sets[k].ranks, ","), fmt::join(ranks, ","));
        check_shards(static_cast<int>(k), slot);
      }
    for (const Segment& segment : program_.segments)
      for (const Instr& instr : segment.instrs)
        if (instr.kind == InstrKind::accumulate && !seen.contains(instr.target))
          broken("the gradient of {} is in no set", program_.slot(instr.target).name);
  }

  // The states of a set lie in shards of the same ranks.
  void check_shards(int k, int slot) const {
    static const Share whole;
    const Share* cut = facts_.cut(slot);
    const Share& share = cut == nullptr ? whole : *cut;
    const GradientSet& set = set_of(k);
    const std::string& name = program_.slot(slot).name;
    if (set.zero != share.zero || set.over != share.over)
      broken(
          "set {} has states of {} in shards over ranks {} (zero {}); they are over {} (zero {})",
          k, name, fmt::join(set.over, ","), set.zero, fmt::join(share.over, ","), share.zero);
    if (set.scatter != share.scatter)
      broken("set {} {} the gradient of {}, which {}", k, set.scatter ? "scatters" : "sums", name,
             share.scatter ? "rests in shards" : "rests whole");
  }

  // Sums start outside of blocks and loops, and no addend of what they sum comes after.
  void check_starts(const Segment& segment) const {
    std::map<int, int> set_of;  // parameter → its set, where that is summed
    for (size_t k = 0; k < program_.sets.size() && !segment.sums.empty(); ++k)
      if (!program_.sets[k].ranks.empty() || program_.sets[k].scatter)
        for (int slot : program_.sets[k].parameters) set_of[slot] = static_cast<int>(k);
    for (const SumStart& sum : segment.sums) {
      if (sum.set < 0 || static_cast<size_t>(sum.set) >= program_.sets.size())
        broken("segment {} sums up to set {} of {}", segment.name, sum.set, program_.sets.size());
      for (const BlockRun& run : segment.blocks)
        if (run.first < sum.after && sum.after < run.last)
          broken("sums up to set {} start inside of block {}", sum.set, run.path);
      for (const Loop& loop : segment.loops)
        if (loop.first < sum.after && sum.after < loop.last())
          broken("sums up to set {} start inside of a loop of {}", sum.set, segment.name);
      for (size_t i = sum.after; i < segment.instrs.size(); ++i) {
        if (segment.instrs[i].kind != InstrKind::accumulate) continue;
        const auto it = set_of.find(segment.instrs[i].target);
        if (it != set_of.end() && it->second <= sum.set)
          broken("the sum of {} starts before its last addend", program_.slot(it->first).name);
      }
    }
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
      case StepKind::scatter:
        if (!set.scatter || instr.ranks != set.over)
          broken(
              "scatter of {} over ranks {}; it rests {}", name(instr.set),
              fmt::join(instr.ranks, ","),
              set.scatter ? fmt::format("in shards over {}", fmt::join(set.over, ",")) : "whole");
        before(instr, StepKind::scale);
        if (done(instr.set).contains(StepKind::sum))
          broken("scatter of {} after its sum", name(instr.set));
        return once(instr);
      case StepKind::sum:
        if (set.scatter) after(instr, StepKind::scatter);
        if (instr.ranks != set.ranks || instr.ranks.empty())
          broken("sum of {} over ranks {}; its addends are on ranks {}", name(instr.set),
                 fmt::join(instr.ranks, ","), fmt::join(set.ranks, ","));
        before(instr, StepKind::scale);
        return once(instr);
      case StepKind::scale:
        if (set.scatter) after(instr, StepKind::scatter);
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
        if (!facts_.gathers_of(set).contains(instr.ranks))
          broken("gather of {} over ranks {}; no weight of it rests in shards of these",
                 name(instr.set), fmt::join(instr.ranks, ","));
        if (!gathered_.emplace(instr.set, instr.ranks).second)
          broken("gather of {} twice", name(instr.set));
        return;
    }
  }

  void count(const StepInstr& instr) {
    if (!facts_.holders_of(set_of(instr.set)).contains(instr.holders))
      broken("norm of {} takes gradients that {} ranks hold; there are none", name(instr.set),
             instr.holders);
    if (!counted_[static_cast<size_t>(instr.set)].insert(instr.holders).second)
      broken("{}: gradients that {} ranks hold count twice in the norm", name(instr.set),
             instr.holders);
    done(instr.set).insert(StepKind::norm);
  }

  void check_counted(int k) const {
    for (int holders : facts_.holders_of(set_of(k)))
      if (!counted_[static_cast<size_t>(k)].contains(holders))
        broken("{}: gradients that {} ranks hold are not in the norm", name(k), holders);
  }

  void check_complete(int k) {
    check_counted(k);
    std::vector<StepKind> kinds{StepKind::scale, StepKind::clip, StepKind::update};
    if (!set_of(k).ranks.empty()) kinds.insert(kinds.begin(), StepKind::sum);
    if (set_of(k).scatter) kinds.insert(kinds.begin(), StepKind::scatter);
    for (StepKind kind : kinds)
      if (!done(k).contains(kind)) broken("no {} of {}", name_of(kind), name(k));
    for (int slot : set_of(k).parameters) {
      auto ranks = facts_.gathered_over(slot);
      if (const Share* share = facts_.cut(slot); share != nullptr && !share->sharded())
        ranks = share->over;
      if (ranks && !gathered_.contains({k, *ranks}))
        broken("{} rests in shards, and the step of {} does not gather it",
               program_.slot(slot).name, name(k));
    }
  }

  const Program& program_;
  const Facts facts_;
  std::vector<std::set<StepKind>> done_;  // by set
  std::vector<std::set<int>> counted_;    // by set: numbers of holders that are in the norm
  std::set<std::pair<int, std::vector<int>>> gathered_;
};

}  // namespace

OptimizerStep make_step(const Program& program) {
  OptimizerStep step;
  const Facts facts(program);
  const int n = static_cast<int>(program.sets.size());
  const auto set = [&](int k) -> const GradientSet& {
    return program.sets[static_cast<size_t>(k)];
  };
  for (int k = 0; k < n; ++k)
    if (set(k).scatter) step.push_back({StepKind::scatter, k, set(k).over, 1});
  for (int k = 0; k < n; ++k)
    if (!set(k).ranks.empty()) step.push_back({StepKind::sum, k, set(k).ranks, 1});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::scale, k, {}, 1});
  for (int k = 0; k < n; ++k)
    for (int holders : facts.holders_of(set(k))) step.push_back({StepKind::norm, k, {}, holders});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::clip, k, {}, 1});
  for (int k = 0; k < n; ++k) step.push_back({StepKind::update, k, {}, 1});
  for (int k = 0; k < n; ++k)
    for (const auto& ranks : facts.gathers_of(set(k)))
      step.push_back({StepKind::gather, k, ranks, 1});
  return step;
}

void check_step(const Program& program) {
  StepChecker(program).run();
}

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::scatter:
      return "scatter";
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
