#include "codegen/step.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "codegen/literals.h"

namespace nns::codegen {
namespace {

using lower::GradientSet;
using lower::Program;
using lower::StepInstr;
using lower::StepKind;

constexpr size_t kWidth = 98;
constexpr size_t kMostSets = 6;  // that have a line of their own

// What of a set rests in shards.
std::string cut_text(const GradientSet& set) {
  static constexpr const char* names[] = {"", "optimizer slots", "gradients and optimizer slots",
                                          "weights"};
  if (set.zero == plan::Zero::none || set.over.empty()) return "";
  return fmt::format("; {} in shards over ranks {}", names[set.zero], fmt::join(set.over, ", "));
}

std::string set_line(const Program& program, size_t k) {
  const GradientSet& set = program.sets[k];
  if (set.parameters.empty()) return fmt::format("--   {}: no gradient\n", k + 1);
  int64_t elements = 0;
  for (int slot : set.parameters) elements += numel(program.slot(slot).type.shape);
  const lower::Slot& first = program.slot(set.parameters.front());
  const size_t n = set.parameters.size();
  std::string names = first.name;
  if (n > 1) names += " … " + program.slot(set.parameters.back()).name;
  return wrap(fmt::format("--   {}: {} {}, {}[{}], {}{}", k + 1, n,
                          n == 1 ? "gradient" : "gradients", name_of(first.type.dtype), elements,
                          names, cut_text(set)),
              kWidth, "--      ") +
         "\n";
}

// Whether programs gather what the step would: weights that rest in shards.
bool gathers_in_programs(const Program& program, const StepInstr& instr) {
  return instr.kind == StepKind::gather &&
         program.sets[static_cast<size_t>(instr.set)].zero == plan::Zero::weights;
}

using Line = std::function<std::string(const StepInstr&, const std::string&)>;

// A line an instruction of the kind; for runs of sets with equal lines, a loop.
std::string lines(const Program& program, StepKind kind, const Line& line) {
  std::vector<StepInstr> instrs;
  for (const StepInstr& instr : program.step)
    if (instr.kind == kind && !gathers_in_programs(program, instr)) instrs.push_back(instr);
  std::string out;
  for (size_t i = 0; i < instrs.size();) {
    size_t end = i + 1;
    while (end < instrs.size() && instrs[end].set == instrs[end - 1].set + 1 &&
           line(instrs[end], "k") == line(instrs[i], "k"))
      ++end;
    if (end - i == 1)
      out += fmt::format("  {}\n", line(instrs[i], fmt::format("{}", instrs[i].set + 1)));
    else
      out += fmt::format("  for k = {}, {} do {} end\n", instrs[i].set + 1, instrs[end - 1].set + 1,
                         line(instrs[i], "k"));
    i = end;
  }
  return out;
}

std::string function(const Program& program, StepKind kind, const std::string& parameters,
                     const std::string& before, const std::string& after, const Line& line) {
  return fmt::format("\nfunction step.{}\n", parameters) + before + lines(program, kind, line) +
         after + "end\n";
}

}  // namespace

std::string step_text(const Program& program, const Groups& groups) {
  if (program.step.empty()) return "";
  std::string out =
      "\n-- The step of an optimizer, once backward is done: `o` are the weights, gradients and\n"
      "-- optimizer slots of this rank, by sets of gradients:\n";
  for (size_t k = 0; k < program.sets.size() && k < kMostSets; ++k) out += set_line(program, k);
  if (program.sets.size() > kMostSets)
    out += fmt::format("--   … {} more\n", program.sets.size() - kMostSets);
  for (const StepInstr& instr : program.step)
    if (gathers_in_programs(program, instr))
      out += fmt::format(
          "-- Weights of set {} rest in shards: programs gather them over {} where they use "
          "them.\n",
          instr.set + 1, groups.name(instr.ranks));
  out += "local step = {}\n";
  const auto over = [&](const char* method) {
    return [&groups, method](const StepInstr& instr, const std::string& k) {
      return fmt::format("o:{}({}, {})", method, k, groups.name(instr.ranks));
    };
  };
  out += "\nfunction step.sum(o)\n" + lines(program, StepKind::scatter, over("scatter")) +
         lines(program, StepKind::sum, over("sum")) + "end\n";
  out += function(program, StepKind::scale, "scale(o, factor)", "", "",
                  [](const StepInstr&, auto k) { return fmt::format("o:scale({}, factor)", k); });
  out += function(
      program, StepKind::norm, "squares(o) -- what several ranks hold counts once in the norm",
      "  local total = 0\n", "  return total\n", [](const StepInstr& instr, auto k) {
        return instr.holders == 1 ? fmt::format("total = total + o:squares({}, 1)", k)
                                  : fmt::format("total = total + o:squares({}, {}) / {}", k,
                                                instr.holders, instr.holders);
      });
  out += function(
      program, StepKind::clip, "clip(o, norm, maximum)", "", "",
      [](const StepInstr&, auto k) { return fmt::format("o:clip({}, norm, maximum)", k); });
  out += function(program, StepKind::update, "update(o, lr)", "", "",
                  [](const StepInstr&, auto k) { return fmt::format("o:update({}, lr)", k); });
  if (std::any_of(program.step.begin(), program.step.end(), [&](const StepInstr& instr) {
        return instr.kind == StepKind::gather && !gathers_in_programs(program, instr);
      }))
    out += function(program, StepKind::gather, "gather(o)", "", "", over("gather"));
  return out;
}

}  // namespace nns::codegen
