#include "codegen/head.h"

#include <fmt/ranges.h>

#include <optional>

#include "codegen/literals.h"
#include "lower/uses.h"

namespace nns::codegen {
namespace {

constexpr size_t kWidth = 98;
constexpr size_t kMostNamedGroups = 30;  // a function of LuaJIT sees at most 60 outer locals

// A name with its first number taken out: "h.3.fc.weight" → "h.", 3, ".fc.weight".
struct Numbered {
  std::string before, after;
  std::optional<int64_t> number;
};

Numbered split_name(const std::string& name) {
  for (size_t start = 0; start < name.size();) {
    const size_t end = std::min(name.find('.', start), name.size());
    const std::string part = name.substr(start, end - start);
    if (start > 0 && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos)
      return {name.substr(0, start), name.substr(end), std::stoll(part)};
    start = end + 1;
  }
  return {name, "", std::nullopt};
}

bool communicates(const lower::Instr& instr) {
  return lower::communication_of(instr) != operators::Communication::none;
}

// "rows 0..191 of 384, columns 64..127 of 128"
std::string part_text(const lower::Slot& slot) {
  std::vector<std::string> cuts;
  for (size_t d = 0; d < slot.whole.size(); ++d) {
    const lower::Range& r = slot.box[d];
    if (r.length() == slot.whole[d]) continue;
    const std::string what = d == 0 ? "rows" : d == 1 ? "columns" : fmt::format("dimension {}:", d);
    cuts.push_back(fmt::format("{} {}..{} of {}", what, r.start, r.stop - 1, slot.whole[d]));
  }
  return fmt::format("{}", fmt::join(cuts, ", "));
}

}  // namespace

bool Groups::is_group(const lower::Instr& instr, const lower::NamedArg& arg) {
  return (arg.name == "group" || arg.name == "ring") && communicates(instr);
}

Groups::Groups(const lower::Program& program) {
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs) {
      if (!communicates(instr)) continue;
      for (const lower::NamedArg& a : instr.args) {
        if (!is_group(instr, a)) continue;
        const Shape& ranks = std::get<Shape>(a.value);
        if (!names_.emplace(ranks, "").second) continue;
        order_.push_back(ranks);
      }
    }
  for (size_t k = 0; k < order_.size(); ++k)
    names_[order_[k]] = k == 0                             ? "tp"
                        : order_.size() > kMostNamedGroups ? fmt::format("groups[{}]", k + 1)
                                                           : fmt::format("tp_{}", k + 1);
  for (const lower::StepInstr& instr : program.step) {
    const Shape ranks(instr.ranks.begin(), instr.ranks.end());
    if (ranks.empty() || !names_.emplace(ranks, "").second) continue;
    sums_.push_back(ranks);
    names_[ranks] = sums_.size() == 1 ? "dp" : fmt::format("dp_{}", sums_.size());
  }
}

std::string Groups::lines() const {
  std::string out = order_.size() > kMostNamedGroups ? "local groups = {}\n" : "";
  for (const auto* list : {&order_, &sums_})
    for (const Shape& ranks : *list) {
      const std::string& name = names_.at(ranks);
      out += wrap(fmt::format("{}{} = rt.group {{ {} }}", name.ends_with(']') ? "" : "local ", name,
                              fmt::join(ranks, ", ")),
                  kWidth, "  ") +
             "\n";
    }
  return out;
}

std::vector<std::string> Groups::all_names() const {
  std::vector<std::string> out;
  for (const auto* list : {&order_, &sums_})
    for (const Shape& ranks : *list) out.push_back(names_.at(ranks));
  out.push_back("groups");
  return out;
}

std::string weight_lines(const lower::Program& program) {
  struct Line {
    Numbered name;
    int64_t last = 0;
    std::string rest;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> open;  // what a line joins by → its place
  for (const auto* list : {&program.parameters, &program.buffers})
    for (int id : *list) {
      const lower::Slot& slot = program.slot(id);
      std::string rest = fmt::format("  {}", to_string(slot.type));
      if (const std::string part = part_text(slot); !part.empty()) rest += "  " + part;
      Numbered name = split_name(slot.name);
      const std::string key = name.before + "*" + name.after + rest;
      const auto it = open.find(key);
      if (name.number && it != open.end() && lines[it->second].last + 1 == *name.number) {
        lines[it->second].last = *name.number;
        continue;
      }
      open[key] = lines.size();
      const int64_t number = name.number.value_or(0);
      lines.push_back({std::move(name), number, std::move(rest)});
    }
  std::string out;
  for (const Line& line : lines) {
    std::string name = line.name.before + line.name.after;
    if (line.name.number) {
      const int64_t first = *line.name.number;
      name = fmt::format(
          "{}{}{}", line.name.before,
          first == line.last ? fmt::format("{}", first) : fmt::format("{}…{}", first, line.last),
          line.name.after);
    }
    out += fmt::format("--   {}{}\n", name, line.rest);
  }
  return out.empty() ? out : "-- weights of this rank:\n" + out;
}

}  // namespace nns::codegen
