// Text, JSON and hash of a Program.
#include "lower/program.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <set>

namespace nns::lower {
namespace {

using Json = nlohmann::json;

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
  for (const GradientSet& set : program.sets)
    text += fmt::format("  gradients %{}{}{}\n", fmt::join(set.parameters, " %"),
                        set.ranks.empty() ? "" : " summed over ", fmt::join(set.ranks, " "));
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
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      sums_at(i);
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

Json instr_json(const Instr& instr) {
  Json j = {{"kind", name_of(instr.kind)}};
  if (!instr.op.empty()) j["op"] = instr.op;
  Json args = Json::array();
  for (const NamedArg& a : instr.args)
    args.push_back(Json::array({a.name, Json::parse(graph::to_json(a.value))}));
  j["args"] = args;
  if (!instr.outs.empty()) j["outs"] = instr.outs;
  if (instr.target >= 0) j["target"] = instr.target;
  if (instr.into >= 0) j["into"] = instr.into;
  if (instr.node >= 0) j["node"] = instr.node;
  if (!instr.module.empty()) j["module"] = instr.module;
  if (instr.loc.line > 0) j["place"] = Json::array({instr.loc.file, instr.loc.line});
  return j;
}

}  // namespace

std::vector<std::vector<int>> groups_of(const Program& program) {
  std::set<std::vector<int>> groups;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind != InstrKind::call || !instr.op.starts_with("comm::")) continue;
      for (const NamedArg& a : instr.args)
        if (a.name == "group") {
          const auto& ranks = std::get<Shape>(a.value);
          groups.emplace(ranks.begin(), ranks.end());
        }
    }
  for (const Share& share : program.shares)
    if (!share.reduce.empty()) groups.insert(share.reduce);
  return {groups.begin(), groups.end()};
}

std::string to_text(const Program& program) {
  return write_text(program, true);
}

uint64_t hash(const Program& program) {
  return hash_bytes(write_text(program, false));
}

std::string to_json(const Program& program) {
  Json j = {{"format", 1},
            {"model", program.model},
            {"rank", program.rank},
            {"world", program.world},
            {"training", program.training},
            {"graph", hex(program.graph_hash)},
            {"parameters", program.parameters},
            {"buffers", program.buffers},
            {"constants", program.constants}};
  for (const Slot& slot : program.slots)
    j["slots"].push_back({{"name", slot.name},
                          {"role", name_of(slot.role)},
                          {"shape", slot.type.shape},
                          {"dtype", nns::name_of(slot.type.dtype)}});
  for (const Segment& segment : program.segments) {
    Json s = {{"name", segment.name},         {"stage", segment.stage},
              {"inputs", segment.inputs},     {"outputs", segment.outputs},
              {"saved_in", segment.saved_in}, {"saved_out", segment.saved_out}};
    s["instrs"] = Json::array();
    for (const Instr& instr : segment.instrs) s["instrs"].push_back(instr_json(instr));
    s["blocks"] = Json::array();
    for (const BlockRun& run : segment.blocks)
      s["blocks"].push_back(
          {{"body", run.body}, {"first", run.first}, {"last", run.last}, {"path", run.path}});
    for (const Loop& loop : segment.loops)
      s["loops"].push_back({{"first", loop.first}, {"size", loop.size}, {"count", loop.count}});
    for (const SumStart& sum : segment.sums)
      s["sums"].push_back({{"after", sum.after}, {"set", sum.set}});
    j["segments"].push_back(s);
  }
  for (const GradientSet& set : program.sets)
    j["sets"].push_back({{"ranks", set.ranks}, {"parameters", set.parameters}});
  for (const StepInstr& instr : program.step)
    j["step"].push_back({{"kind", name_of(instr.kind)},
                         {"set", instr.set},
                         {"ranks", instr.ranks},
                         {"holders", instr.holders}});
  j["outputs"] = Json::array();
  for (const graph::Nest& nest : program.outputs)
    j["outputs"].push_back(Json::parse(graph::to_json(nest)));
  if (program.embedded) {
    j["seeds"] = program.seeds;
    j["input_gradients"] = program.input_gradients;
  }
  j["schedule"] = Json::array();
  for (const Action& action : program.schedule)
    j["schedule"].push_back({{"kind", std::string(1, action.kind)},
                             {"stage", action.stage},
                             {"micro_batch", action.micro}});
  return j.dump();
}

}  // namespace nns::lower
