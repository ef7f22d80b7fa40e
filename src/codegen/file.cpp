// The whole of a generated file and its segments.
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/file.h"
#include "codegen/literals.h"
#include "codegen/step.h"
#include "lower/uses.h"

namespace nns::codegen {
namespace {

constexpr size_t kMostLines = 8000;  // of a function: LuaJIT allows 65536 constants

// Whether a text calls a helper of the runtime: its name stands alone.
bool calls(const std::string& text, const std::string& helper) {
  for (size_t at = 0; (at = text.find(helper + "(", at)) != std::string::npos; ++at)
    if (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '(')) return true;
  return false;
}

}  // namespace

std::string FileWriter::body() {
  const std::string casts = casts_text();
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
  for (const char* helper : {"release", "accumulate", "accumulate_copy", "into", "update",
                             "start_sums", "gather_ahead", "random_key", "items", "concat"})
    if (calls(functions_, helper) || calls(segments, helper)) used.push_back(helper);
  if (!used.empty())
    out += fmt::format("local {} = rt.{}\n", fmt::join(used, ", "), fmt::join(used, ", rt."));
  out += groups_.lines();
  if (!functions_.empty()) out += "local block = {}\n";
  std::vector<std::string> fields;
  if (!casts.empty()) fields.emplace_back("casts");
  for (const Segment& segment : program_.segments) fields.push_back(segment.name);
  if (!program_.step.empty()) fields.emplace_back("step");
  if (segments_in_table()) {
    out += "local segment = {}\n" + casts + functions_ + segments + step_text(program_, groups_);
    if (!casts.empty()) out += "segment.casts = casts\n";
    if (!program_.step.empty()) out += "segment.step = step\n";
    return out + "\nreturn segment\n";
  }
  out += casts + functions_ + segments + step_text(program_, groups_) + "\nreturn { ";
  for (size_t i = 0; i < fields.size(); ++i)
    out += fmt::format("{}{} = {}", i == 0 ? "" : ", ", fields[i], fields[i]);
  return out + " }\n";
}

std::set<std::string> FileWriter::reserved_names() {
  std::set<std::string> names = {"rt",
                                 "aten",
                                 "nnscaler",
                                 "comm",
                                 "hook",
                                 "block",
                                 "release",
                                 "accumulate",
                                 "accumulate_copy",
                                 "into",
                                 "start_sums",
                                 "casts",
                                 "step",
                                 "gather_ahead",
                                 "update",
                                 "random_key",
                                 "input",
                                 "items",
                                 "concat",
                                 "given",
                                 "seed",
                                 "rest",
                                 "i",
                                 "_",
                                 "unpack",
                                 "require",
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

void FileWriter::write_instrs(const Segment& segment, size_t first, size_t last,
                              FunctionWriter& w) {
  auto loop = std::find_if(segment.loops.begin(), segment.loops.end(),
                           [&](const lower::Loop& l) { return l.first >= first; });
  for (size_t i = first; i < last;) {
    start(segment, i, w);
    if (&w == whole_ && w.lines().size() >= (cuts_.empty() ? 0 : cuts_.back()) + kMostLines)
      cuts_.push_back(w.lines().size());
    if (loop == segment.loops.end() || loop->first != i) {
      w.statement(segment.instrs[i++]);
      continue;
    }
    w.loop(segment, *loop, last_use(segment));
    i = loop->last();
    ++loop;
  }
}

void FileWriter::start(const Segment& segment, size_t after, FunctionWriter& w) {
  for (const lower::SumStart& sum : segment.sums)
    if (sum.after == after)
      w.raw(fmt::format("if ctx.last then start_sums(ctx, {}) end", sum.set + 1));
  for (const lower::Ahead& mark : segment.ahead) {
    if (mark.after != after) continue;
    for (const Run& run : runs_of(segment))
      if (run.first == mark.block)
        w.raw(ahead_text(segment, run, last_part(segment.blocks[run.first].path), w));
  }
}

void FileWriter::start_sums(const Segment& segment, const Run& run, FunctionWriter& w) {
  std::string list;
  for (size_t k = run.first; k + 1 < run.last; ++k)
    for (const lower::SumStart& sum : segment.sums)
      if (sum.after == segment.blocks[k].last)
        list += fmt::format("{}[{}] = {}", list.empty() ? "" : ", ",
                            last_part(segment.blocks[k].path), sum.set + 1);
  if (list.empty()) return;
  w.raw(wrap(fmt::format("if ctx.last then start_sums(ctx, ({{ {} }})[i]) end", list), kWidth - 4,
             "      "));
}

std::string FileWriter::write_segment(const Segment& segment) {
  const bool forward = segment.kind == lower::SegmentKind::forward;
  FunctionWriter w(program_, operators_, groups_, "", reserved_);
  cuts_.clear();
  whole_ = &w;
  if (segment.instrs.size() > kMostLines) w.spill();
  for (int in : segment.inputs) {
    const std::string& name = program_.slot(in).name;
    if (!forward) {
      w.bind(in, seed_name(in));
      store_top(segment, in, w);
      continue;
    }
    if (!read_here(segment, in) && !top_field_.contains(in)) continue;
    const std::string index = index_by(name);  // inputs have names, also those named by position
    const std::string name_here = w.declare(in);
    w.raw(fmt::format("{} = input{}", FunctionWriter::declaration(name_here),
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
  size_t next = 0;
  for (const Run& run : runs_of(segment)) {
    write_instrs(segment, next, segment.blocks[run.first].first, w);
    start(segment, segment.blocks[run.first].first, w);
    write_run(segment, run, w);
    next = segment.blocks[run.last - 1].last;
  }
  write_instrs(segment, next, segment.instrs.size(), w);
  start(segment, segment.instrs.size(), w);
  std::string results;
  if (program_.returns(segment))
    for (const graph::Nest& nest : program_.outputs)
      results += (results.empty() ? "" : ", ") + nest_text(nest, w);
  if (segment.kind == lower::SegmentKind::backward) results = gradients_text(w);
  if (!results.empty()) w.raw(wrap("return " + results, kWidth, "    "));
  return function_text(segment, w, cuts_);
}

std::string FileWriter::function_text(const Segment& segment, const FunctionWriter& w,
                                      const std::vector<size_t>& cuts) const {
  const std::string parameters =
      segment.kind == lower::SegmentKind::forward ? "p, s, u, input, ctx" : "p, s, g, seed, ctx";
  const std::string head = segments_in_table() ? "function segment." : "local function ";
  const std::string rest = w.overflow() ? "  local rest = {}\n" : "";
  const auto lines = [&](size_t first, size_t last) {
    std::string text;
    for (size_t i = first; i < last; ++i) text += w.lines()[i] + "\n";
    return text;
  };
  if (cuts.empty())
    return fmt::format("\n{}{}({})\n{}{}end\n", head, segment.name, parameters, rest,
                       lines(0, w.lines().size()));
  std::string parts = fmt::format("\nlocal {}_parts = {{}}\n", segment.name), calls;
  for (size_t k = 0; k <= cuts.size(); ++k) {
    parts +=
        fmt::format("\n{}_parts[{}] = function({}, rest)\n{}end\n", segment.name, k + 1, parameters,
                    lines(k == 0 ? 0 : cuts[k - 1], k == cuts.size() ? w.lines().size() : cuts[k]));
    calls += fmt::format("  {}{}_parts[{}]({}, rest)\n", k == cuts.size() ? "return " : "",
                         segment.name, k + 1, parameters);
  }
  return fmt::format("{}\n{}{}({})\n{}{}end\n", parts, head, segment.name, parameters, rest, calls);
}

}  // namespace nns::codegen
