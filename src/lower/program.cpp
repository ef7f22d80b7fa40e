// Text and hash of a Program.
#include "lower/program_json.h"

#include <fmt/ranges.h>

#include <set>

#include "lower/uses.h"

namespace nns::lower {

std::string_view name_of(SlotRole role) {
  switch (role) {
    case SlotRole::input:
      return "input";
    case SlotRole::parameter:
      return "parameter";
    case SlotRole::buffer:
      return "buffer";
    case SlotRole::constant:
      return "constant";
    case SlotRole::cast:
      return "cast";
    case SlotRole::activation:
      return "activation";
    case SlotRole::gradient:
      return "gradient";
  }
  return "?";
}

std::string_view name_of(InstrKind kind) {
  switch (kind) {
    case InstrKind::call:
      return "call";
    case InstrKind::release:
      return "release";
    case InstrKind::accumulate:
      return "accumulate";
    case InstrKind::update:
      return "update";
  }
  return "?";
}

namespace {

std::string slots_text(const std::vector<int>& ids) {
  std::string text;
  for (int id : ids)
    text += fmt::format("{}{}", text.empty() ? "" : " ", id < 0 ? "_" : fmt::format("%{}", id));
  return text;
}

std::string instr_text(const Program& program, const Instr& instr) {
  std::string line;
  for (size_t i = 0; i < instr.outs.size(); ++i) {
    const int out = instr.outs[i];
    line += i == 0 ? "" : ", ";
    line += out < 0 ? "_" : fmt::format("%{}: {}", out, to_string(program.slot(out).type));
  }
  if (!instr.outs.empty()) line += " = ";
  line += instr.kind == InstrKind::call ? instr.op : std::string(name_of(instr.kind));
  if (instr.target >= 0) line += fmt::format(" {}", program.slot(instr.target).name);
  line += "(";
  for (size_t i = 0; i < instr.args.size(); ++i) {
    const NamedArg& a = instr.args[i];
    line += fmt::format("{}{}{}{}", i == 0 ? "" : ", ", a.name, a.name.empty() ? "" : "=",
                        graph::to_text(a.value));
  }
  line += ")";
  if (instr.into >= 0) line += fmt::format(" into {}", program.slot(instr.into).name);
  return line;
}

// All that executes; source places only on demand.
std::string write_text(const Program& program, bool locations) {
  std::string text = fmt::format("program {} rank {} of {}, {}\n", program.model, program.rank,
                                 program.world, program.training ? "training" : "evaluation");
  const auto leaves = [&](const char* role, const std::vector<int>& ids) {
    for (int id : ids)
      text += fmt::format("  {} %{} {}: {}\n", role, id, program.slot(id).name,
                          to_string(program.slot(id).type));
  };
  leaves("parameter", program.parameters);
  leaves("buffer", program.buffers);
  leaves("constant", program.constants);
  for (size_t i = 0; i < program.constant_data.size(); ++i)
    text += fmt::format("  data {} {}\n", i, hex(hash_bytes(program.constant_data[i])));
  for (const Instr& instr : program.casts) text += "  once " + instr_text(program, instr) + "\n";
  for (const GradientSet& set : program.sets)
    text += fmt::format("  gradients {}{}{}{}\n", slots_text(set.parameters),
                        set.ranks.empty() ? "" : " summed over ", fmt::join(set.ranks, " "),
                        set.late ? " of other graphs" : "");
  for (const Segment& segment : program.segments) {
    text += fmt::format("segment {}{}\n", segment.name,
                        segment.stage > 0 ? fmt::format(" of stage {}", segment.stage) : "");
    leaves("input", segment.inputs);
    text +=
        fmt::format("  outputs {}\n  saved in {}\n  saved out {}\n", slots_text(segment.outputs),
                    slots_text(segment.saved_in), slots_text(segment.saved_out));
    for (const Loop& loop : segment.loops)
      text += fmt::format("  loop at {}: {} times {}\n", loop.first, loop.count, loop.size);
    size_t block = 0;
    auto sum = segment.sums.begin();
    const auto sums_at = [&](size_t i) {
      for (; sum != segment.sums.end() && sum->after == i; ++sum)
        text += fmt::format("  sums up to {} may start\n", sum->set);
    };
    auto ahead = segment.ahead.begin();
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      sums_at(i);
      for (; ahead != segment.ahead.end() && ahead->after == i; ++ahead)
        text += fmt::format("  gathers of {} begin\n", segment.blocks.at(ahead->block).path);
      if (block < segment.blocks.size() && segment.blocks[block].first == i)
        text +=
            fmt::format("  block {} {}\n", segment.blocks[block].body, segment.blocks[block].path);
      text += "  " + instr_text(program, segment.instrs[i]);
      if (locations && segment.instrs[i].kind != InstrKind::release)
        text +=
            fmt::format("  -- {} {}", segment.instrs[i].module, short_form(segment.instrs[i].loc));
      text += "\n";
      if (block < segment.blocks.size() && segment.blocks[block].last == i + 1) {
        text += "  end\n";
        ++block;
      }
    }
    sums_at(segment.instrs.size());
  }
  for (const graph::Nest& nest : program.outputs) text += "output " + graph::to_text(nest) + "\n";
  if (program.embedded) text += "embedded\n";
  for (const auto& [name, slot] : program.seeds) text += fmt::format("seed {} %{}\n", name, slot);
  for (const auto& [name, slot] : program.input_gradients)
    text += fmt::format("input gradient {} %{}\n", name, slot);
  if (!program.step.empty()) text += "step\n" + to_text(program.step);
  text += "schedule";
  for (const Action& action : program.schedule)
    text += fmt::format(" {}{}{}", action.kind, action.micro,
                        action.stage > 0 ? fmt::format("@{}", action.stage) : "");
  text += "\n";
  return text;
}

}  // namespace

Range Share::part(int i) const {
  if (owner < 0) return part_of({0, length}, i, static_cast<int>(over.size()));
  return i == owner ? Range{0, length} : Range{0, 0};
}

std::vector<std::vector<int>> groups_of(const Program& program) {
  std::set<std::vector<int>> groups;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind != InstrKind::call ||
          communication_of(instr) == operators::Communication::none)
        continue;
      for (const NamedArg& a : instr.args)
        if (a.name == "group") {
          const auto& ranks = std::get<Shape>(a.value);
          groups.emplace(ranks.begin(), ranks.end());
        }
    }
  for (const Share& share : program.shares)
    for (const auto* ranks : {&share.reduce, &share.over})
      if (!ranks->empty()) groups.insert(*ranks);
  return {groups.begin(), groups.end()};
}

std::string to_text(const Program& program) {
  return write_text(program, true);
}

uint64_t hash(const Program& program) {
  return hash_bytes(write_text(program, false));
}

}  // namespace nns::lower
