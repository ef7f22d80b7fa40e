// The whole of a generated file and its segments.
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/file.h"
#include "codegen/literals.h"
#include "lower/uses.h"

namespace nns::codegen {

std::string FileWriter::body() {
  std::string segments;
  for (size_t first = 0; first < program_.segments.size();) {
    begin_stage(first);
    collect_saved();
    for (const Segment* segment : stage_) segments += write_segment(*segment);
    first += stage_.size();
  }
  std::string out = weight_lines(program_) + "local rt = require 'nnscaler.runtime'\n";
  for (const auto& [space, names] : operators_.tables()) {
    std::string line = fmt::format("local {} = rt.operators('{}', {{ ", space, space);
    bool first = true;
    for (const auto& [name, op] : names) {
      line += fmt::format("{}{} = {}", first ? "" : ", ", name, quoted(op));
      first = false;
    }
    out += wrap(line + " })", kWidth, "  ") + "\n";
  }
  std::vector<std::string> used;
  for (const char* helper : {"release", "accumulate", "accumulate_copy", "update", "random_key"})
    if (functions_.find(fmt::format(" {}(", helper)) != std::string::npos ||
        segments.find(fmt::format(" {}(", helper)) != std::string::npos)
      used.push_back(helper);
  if (!used.empty())
    out += fmt::format("local {} = rt.{}\n", fmt::join(used, ", "), fmt::join(used, ", rt."));
  out += groups_.lines();
  if (!functions_.empty()) out += "local block = {}\n";
  out += functions_ + segments + "\nreturn { ";
  for (size_t i = 0; i < program_.segments.size(); ++i)
    out += fmt::format("{}{} = {}", i == 0 ? "" : ", ", program_.segments[i].name,
                       program_.segments[i].name);
  return out + " }\n";
}

std::set<std::string> FileWriter::reserved_names() {
  std::set<std::string> names = {"rt",      "aten",       "nnscaler",
                                 "comm",    "hook",       "block",
                                 "release", "accumulate", "accumulate_copy",
                                 "update",  "random_key", "input",
                                 "seed",    "rest",       "i",
                                 "_",       "unpack",     "require",
                                 "math"};
  names.insert(std::begin(kTables), std::end(kTables));
  names.erase("_");
  return names;
}

bool FileWriter::read_here(const Segment& segment, int slot) {
  for (const Instr& instr : segment.instrs) {
    const auto in = lower::reads(instr);
    if (std::find(in.begin(), in.end(), slot) != in.end()) return true;
  }
  return std::find(segment.outputs.begin(), segment.outputs.end(), slot) != segment.outputs.end();
}

std::string FileWriter::nest_text(const graph::Nest& nest, FunctionWriter& w) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&nest.node)) return w.expression(ref->id);
  if (const auto* b = std::get_if<bool>(&nest.node)) return *b ? "true" : "false";
  if (const auto* d = std::get_if<double>(&nest.node)) return real(*d);
  if (const auto* s = std::get_if<std::string>(&nest.node)) return quoted(*s);
  const auto* fields = std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node);
  if (fields == nullptr) return "nil";
  std::string text;
  for (const auto& [key, field] : *fields) {
    std::string index = index_by(key);
    index = index.front() == '.' ? index.substr(1) : index;
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", index, nest_text(field, w));
  }
  return text.empty() ? "{}" : "{ " + text + " }";
}

std::string FileWriter::seed_name(int slot) const {
  const auto& seeds = program_.seeds;
  for (size_t i = 0; i < seeds.size(); ++i)
    if (seeds[i].second == slot) return fmt::format("seed[{}]", i + 1);
  return "seed";
}

std::string FileWriter::gradients_text(FunctionWriter& w) const {
  std::string text;
  for (const auto& [name, slot] : program_.input_gradients)
    text +=
        fmt::format("{}[{}] = {}", text.empty() ? "{ " : ", ", quoted(name), w.expression(slot));
  return text.empty() ? text : text + " }";
}

std::string FileWriter::write_segment(const Segment& segment) {
  const bool forward = segment.kind == lower::SegmentKind::forward;
  FunctionWriter w(program_, operators_, groups_, "", reserved_);
  for (int in : segment.inputs) {
    const std::string& name = program_.slot(in).name;
    if (!forward) {
      w.bind(in, seed_name(in));
      store_top(segment, in, w);
      continue;
    }
    if (!read_here(segment, in) && !top_field_.contains(in)) continue;
    const std::string index = index_by(name);  // inputs have names, also those named by position
    w.raw(fmt::format("local {} = input{}", w.declare(in),
                      index.front() == '.' ? index : fmt::format("[{}]", quoted(name))));
    store_top(segment, in, w);
  }
  for (int slot : segment.saved_in)
    if (top_field_.contains(slot) || elsewhere_.contains(slot))
      w.bind(slot, saved_expression(slot));
  for (const auto& [slot, field] : top_field_)
    if (maker_.at(slot) == &segment &&
        std::find(segment.inputs.begin(), segment.inputs.end(), slot) == segment.inputs.end())
      w.store(slot, field);
  const auto runs = runs_of(segment);
  size_t next = 0;
  for (size_t i = 0; i < segment.instrs.size();) {
    if (next < runs.size() && segment.blocks[runs[next].first].first == i) {
      write_run(segment, runs[next], w);
      i = segment.blocks[runs[next].last - 1].last;
      ++next;
      continue;
    }
    w.statement(segment.instrs[i++]);
  }
  std::string results;
  if (program_.returns(segment))
    for (const graph::Nest& nest : program_.outputs)
      results += (results.empty() ? "" : ", ") + nest_text(nest, w);
  if (segment.kind == lower::SegmentKind::backward) results = gradients_text(w);
  if (!results.empty()) w.raw(wrap("return " + results, kWidth, "    "));
  std::string out = fmt::format("\nlocal function {}({})\n", segment.name,
                                forward ? "p, s, u, input, ctx" : "p, s, g, seed, ctx");
  if (w.overflow()) out += "  local rest = {}\n";
  for (const std::string& line : w.lines()) out += line + "\n";
  return out + "end\n";
}

}  // namespace nns::codegen
