// The file: header, operator tables, block functions, segments.
#include "codegen/lua.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "codegen/function.h"
#include "lower/block.h"
#include "lower/uses.h"

#ifndef NNSCALER_VERSION
#define NNSCALER_VERSION "0.1.0"
#endif

namespace nns::codegen {
namespace {

using lower::BlockRun;
using lower::InstrKind;
using lower::Segment;

constexpr size_t kWidth = 98;

std::string list_of(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}
std::string number_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}
std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

// Slots of one block instance in the order of their first occurrence: equal numbers in all
// instances of a body.
struct Shape {
  std::vector<int> externals;  // read, made elsewhere, in order
  std::vector<int> results;    // made here and used by later instructions, in order
  std::map<int, int> number;   // slot → position of first occurrence
};

Shape shape_of(const Program& program, const Segment& segment, const BlockRun& run,
               const std::set<int>& read_later) {
  Shape shape;
  std::set<int> made;
  const auto see = [&](int slot) {
    return shape.number.emplace(slot, static_cast<int>(shape.number.size())).second;
  };
  for (size_t i = run.first; i < run.last; ++i) {
    const Instr& instr = segment.instrs[i];
    for (int slot : lower::reads(instr)) {
      const auto role = program.slot(slot).role;
      if (role == lower::SlotRole::parameter || role == lower::SlotRole::buffer ||
          role == lower::SlotRole::constant)
        continue;
      if (see(slot) && !made.contains(slot)) shape.externals.push_back(slot);
    }
    for (int out : instr.outs) {
      if (out < 0) continue;
      see(out);
      made.insert(out);
      if (read_later.contains(out)) shape.results.push_back(out);
    }
  }
  return shape;
}

struct Body {
  std::string name;  // of its function: "h_forward"
  const Segment* segment = nullptr;
  std::vector<std::string> tables;    // of kTables, taken as parameters
  std::vector<int> kept;              // numbers of slots that instances keep
  std::map<int, std::string> fields;  // number → field of `s`
  std::vector<size_t> arguments;      // indices of externals that are passed
  std::string text;
  std::string span;  // "transformer.h.0 … transformer.h.3"
};

class FileWriter {
 public:
  explicit FileWriter(const Program& program)
      : program_(program), operators_(program), groups_(program) {
    const auto names = groups_.all_names();
    reserved_.insert(names.begin(), names.end());
  }

  std::string body() {
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
    std::string used;
    for (const char* helper : {"release", "accumulate", "accumulate_copy", "update", "random_key"})
      if (functions_.find(fmt::format(" {}(", helper)) != std::string::npos ||
          segments.find(fmt::format(" {}(", helper)) != std::string::npos)
        used += fmt::format("{}{}", used.empty() ? "" : ", ", helper);
    if (!used.empty()) {
      std::string from;
      for (char c : used) from += c;
      std::string values;
      size_t start = 0;
      while (start < used.size()) {
        const size_t end = std::min(used.find(", ", start), used.size());
        values += (values.empty() ? "rt." : ", rt.") + used.substr(start, end - start);
        start = end + 2;
      }
      out += fmt::format("local {} = {}\n", used, values);
    }
    out += groups_.lines();
    if (!functions_.empty()) out += "local block = {}\n";
    out += functions_ + segments + "\nreturn { ";
    for (size_t i = 0; i < program_.segments.size(); ++i)
      out += fmt::format("{}{} = {}", i == 0 ? "" : ", ", program_.segments[i].name,
                         program_.segments[i].name);
    return out + " }\n";
  }

 private:
  struct Run {           // neighbouring instances of one body
    size_t first, last;  // indices into Segment::blocks
  };

  static std::vector<Run> runs_of(const Segment& segment) {
    std::vector<Run> runs;
    const auto& b = segment.blocks;
    for (size_t i = 0; i < b.size(); ++i) {
      const bool joined = !runs.empty() && b[i].body == b[i - 1].body &&
                          b[i].first == b[i - 1].last &&
                          list_of(b[i].path) == list_of(b[i - 1].path);
      if (joined)
        runs.back().last = i + 1;
      else
        runs.push_back({i, i + 1});
    }
    return runs;
  }

  static const BlockRun* block_at(const Segment& segment, size_t instr) {
    for (const BlockRun& run : segment.blocks)
      if (instr >= run.first && instr < run.last) return &run;
    return nullptr;
  }
  static const BlockRun* block_named(const Segment& segment, const std::string& path) {
    for (const BlockRun& run : segment.blocks)
      if (run.path == path) return &run;
    return nullptr;
  }

  // Slots of a segment that something after their block reads.
  const std::set<int>& read_outside(const Segment& segment) {
    auto [it, fresh] = read_outside_.emplace(&segment, std::set<int>{});
    if (!fresh) return it->second;
    std::map<int, const BlockRun*> maker;
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const BlockRun* here = block_at(segment, i);
      for (int slot : lower::reads(segment.instrs[i]))
        if (const auto made = maker.find(slot); made != maker.end() && made->second != here)
          it->second.insert(slot);
      for (int out : segment.instrs[i].outs)
        if (out >= 0) maker[out] = here;
    }
    it->second.insert(segment.outputs.begin(), segment.outputs.end());
    return it->second;
  }

  Shape shape(const Segment& segment, const BlockRun& run) {
    return shape_of(program_, segment, run, read_outside(segment));
  }

  // --- tensors kept for backward
  // -------------------------------------------------------------------

  // The segments of the next stage, which hand tensors on among themselves.
  void begin_stage(size_t first) {
    stage_.clear();
    for (size_t i = first; i < program_.segments.size(); ++i) {
      if (i > first && program_.segments[i].kind == lower::SegmentKind::forward) break;
      stage_.push_back(&program_.segments[i]);
    }
    maker_.clear();
    top_.clear();
    top_field_.clear();
    elsewhere_.clear();
    list_field_.clear();
    started_.clear();
  }

  // Decides where each saved tensor is kept: in the table of a block instance that has it, or of
  // the stage.
  void collect_saved() {
    for (const Segment* segment : stage_)
      for (int slot : segment->saved_out) maker_[slot] = segment;
    Names names({});
    for (const Segment* maker : stage_) {
      collect_made_in(*maker);
      for (const Run& run : runs_of(*maker)) {
        const std::string list = list_of(maker->blocks[run.first].path);
        if (!list_field_.contains(list)) list_field_[list] = names.fresh(last_part(list));
      }
      // Instances at one path share a table: what later segments keep there has other names.
      std::set<std::string> used;
      for (const auto& [body, fields] : kept_)
        for (const auto& [number, field] : fields) used.insert(field.substr(2));
      taken_ = std::move(used);
    }
    for (int slot : top_) top_field_[slot] = "s." + names.fresh(hint(slot));
  }

  void collect_made_in(const Segment& maker) {
    std::map<int, const BlockRun*> block;
    std::map<std::string, std::map<int, int>> numbers;  // by path
    for (const BlockRun& run : maker.blocks) {
      for (size_t i = run.first; i < run.last; ++i)
        for (int out : maker.instrs[i].outs)
          if (out >= 0) block[out] = &run;
      numbers[run.path] = shape(maker, run).number;
    }
    for (const Segment* user : stage_) {
      if (user == &maker) continue;
      for (size_t i = 0; i < user->instrs.size(); ++i) {
        const BlockRun* run = block_at(*user, i);
        for (int slot : lower::reads(user->instrs[i])) {
          if (!is_saved(*user, slot) || maker_.at(slot) != &maker) continue;
          if (run != nullptr) {
            const auto it = numbers.find(run->path);
            if (it != numbers.end() && it->second.contains(slot)) {
              keep(*block_named(maker, run->path), it->second.at(slot), slot);
              continue;
            }
          }
          if (const auto made = block.find(slot);
              made != block.end() && !(read_outside(maker).contains(slot))) {
            keep(*made->second, numbers.at(made->second->path).at(slot), slot);
            elsewhere_[slot] = made->second->path;
          } else {
            top_.insert(slot);
          }
        }
      }
    }
  }

  std::string hint(int slot) const { return last_part(program_.slot(slot).name); }

  void keep(const BlockRun& run, int number, int slot) {
    auto& fields = kept_[run.body];
    if (fields.contains(number)) return;
    auto& names = kept_names_.try_emplace(run.body, taken_).first->second;
    fields[number] = "s." + names.fresh(hint(slot));
  }

  // The saved table of an instance: s.h[3].
  std::string instance_table(const std::string& path) const {
    return fmt::format("s.{}[{}]", list_field_.at(list_of(path)), number_of(path));
  }

  // How a saved slot is reached in the backward segment outside of the instance that kept it.
  std::string saved_expression(int slot) {
    if (const auto it = top_field_.find(slot); it != top_field_.end()) return it->second;
    const std::string& path = elsewhere_.at(slot);
    const Segment& maker = *maker_.at(slot);
    const BlockRun* run = block_named(maker, path);
    const int number = shape(maker, *run).number.at(slot);
    return instance_table(path) + kept_.at(run->body).at(number).substr(1);
  }

  // --- bodies
  // ---------------------------------------------------------------------------------------

  Body& body_of(const Segment& segment, const Run& run) {
    const BlockRun& first = segment.blocks[run.first];
    if (const auto it = bodies_.find(first.body); it != bodies_.end()) return it->second;
    Body& body = bodies_[first.body];
    body.segment = &segment;
    body.name =
        body_names_.fresh(fmt::format("{}_{}", last_part(list_of(first.path)), segment.name));
    const Shape s = shape(segment, first);
    FunctionWriter w(program_, operators_, groups_, first.path, reserved_);

    std::map<int, std::string> fields;  // that this body keeps
    if (const auto it = kept_.find(first.body); it != kept_.end()) fields = it->second;
    std::string arguments;
    std::vector<std::string> first_lines;
    for (size_t k = 0; k < s.externals.size(); ++k) {
      const int slot = s.externals[k];
      if (is_saved(segment, slot)) {
        if (const std::string field = kept_by_twin(first.path, slot); !field.empty()) {
          w.bind(slot, field);
          w.need("s");
          continue;
        }
      }
      const std::string name = w.declare(slot);
      body.arguments.push_back(k);
      arguments += ", " + name;
      if (fields.contains(s.number.at(slot))) {
        w.need("s");
        first_lines.push_back(fmt::format("{} = {}", fields.at(s.number.at(slot)), name));
      }
    }
    for (const std::string& line : first_lines) w.raw(line);
    for (const auto& [slot, number] : s.number)
      if (const auto it = fields.find(number);
          it != fields.end() &&
          std::find(s.externals.begin(), s.externals.end(), slot) == s.externals.end())
        w.store(slot, it->second);
    for (size_t i = first.first; i < first.last; ++i) w.statement(segment.instrs[i]);
    std::string results;
    for (int slot : s.results) results += (results.empty() ? "" : ", ") + w.expression(slot);
    if (!results.empty()) w.raw(wrap("return " + results, kWidth, "    "));

    std::string tables;
    for (const char* table : kTables)
      if (w.needs().contains(table)) {
        body.tables.push_back(table);
        tables += (tables.empty() ? "" : ", ") + std::string(table);
      }
    const BlockRun& last = segment.blocks[run.last - 1];
    std::string parameters = tables + arguments;
    if (tables.empty() && !parameters.empty()) parameters.erase(0, 2);
    functions_ += fmt::format("\n-- {} … {}\n", first.path, last.path);
    functions_ +=
        wrap(fmt::format("function block.{}({})", body.name, parameters), kWidth, "    ") + "\n";
    if (w.overflow()) functions_ += "  local rest = {}\n";
    for (const std::string& line : w.lines()) functions_ += line + "\n";
    functions_ += "end\n";
    return body;
  }

  // The field in which the instance at `path` of the segment that makes a slot keeps it, or "".
  std::string kept_by_twin(const std::string& path, int slot) {
    const Segment& maker = *maker_.at(slot);
    const BlockRun* twin = block_named(maker, path);
    if (twin == nullptr) return {};
    const auto numbers = shape(maker, *twin).number;
    const auto number = numbers.find(slot);
    return number == numbers.end() ? std::string() : kept_.at(twin->body).at(number->second);
  }

  static bool is_saved(const Segment& segment, int slot) {
    return std::binary_search(segment.saved_in.begin(), segment.saved_in.end(), slot);
  }

  static std::set<std::string> reserved_names() {
    std::set<std::string> names = {"rt",      "aten",       "nnscaler",   "comm",
                                   "block",   "release",    "accumulate", "accumulate_copy",
                                   "update",  "random_key", "input",      "seed",
                                   "rest",    "i",          "_",          "unpack",
                                   "require", "math"};
    names.insert(std::begin(kTables), std::end(kTables));
    names.erase("_");
    return names;
  }

  // --- runs
  // -----------------------------------------------------------------------------------------

  // For each passed external of a body: the result that the instance before made of it, or nothing
  // when it is one tensor for all. No value at all when the run is no loop.
  std::optional<std::vector<std::optional<size_t>>> carried(const Segment& segment, const Run& run,
                                                            const Body& body) {
    const size_t n = run.last - run.first;
    if (n < 2) return std::nullopt;
    const int64_t step = std::stoll(number_of(segment.blocks[run.first + 1].path)) -
                         std::stoll(number_of(segment.blocks[run.first].path));
    std::vector<Shape> shapes;
    for (size_t k = 0; k < n; ++k) {
      shapes.push_back(shape(segment, segment.blocks[run.first + k]));
      if (k > 0 && std::stoll(number_of(segment.blocks[run.first + k].path)) -
                           std::stoll(number_of(segment.blocks[run.first + k - 1].path)) !=
                       step)
        return std::nullopt;
    }
    std::vector<std::optional<size_t>> sources;
    std::set<size_t> taken;
    for (size_t e : body.arguments) {
      bool same = true;
      for (size_t k = 1; k < n; ++k)
        same = same && shapes[k].externals[e] == shapes[0].externals[e];
      if (same) {
        sources.push_back(std::nullopt);
        continue;
      }
      std::optional<size_t> source;
      for (size_t r = 0; r < shapes[0].results.size() && !source; ++r) {
        bool all = true;
        for (size_t k = 1; k < n; ++k)
          all = all && shapes[k].externals[e] == shapes[k - 1].results[r];
        if (all) source = r;
      }
      if (!source || !taken.insert(*source).second) return std::nullopt;
      sources.push_back(source);
    }
    // Results of all but the last instance go to the next one and nowhere else.
    for (size_t k = 0; k + 1 < n; ++k)
      for (size_t r = 0; r < shapes[k].results.size(); ++r) {
        const int slot = shapes[k].results[r];
        if (!taken.contains(r)) return std::nullopt;
        const BlockRun& next = segment.blocks[run.first + k + 1];
        const BlockRun& own = segment.blocks[run.first + k];
        for (size_t i = own.last; i < segment.instrs.size(); ++i) {
          if (i >= next.first && i < next.last) continue;
          const auto reads = lower::reads(segment.instrs[i]);
          if (std::find(reads.begin(), reads.end(), slot) != reads.end()) return std::nullopt;
        }
        if (std::find(segment.outputs.begin(), segment.outputs.end(), slot) !=
                segment.outputs.end() ||
            top_.contains(slot))
          return std::nullopt;
      }
    return sources;
  }

  std::string table_argument(const std::string& table, const std::string& list,
                             const std::string& index, FunctionWriter& w) {
    const bool number = index.find_first_not_of("0123456789") == std::string::npos;
    const auto sub = [&](const char* root) {
      w.need(root);
      return fmt::format("{}{}[{}]", root, index_path(list), index);
    };
    if (table == "w") return sub("p");
    if (table == "dw") return sub("g");
    if (table == "db") return sub("u");
    if (table == "s") return fmt::format("s.{}[{}]", list_field_.at(list), index);
    if (table == "path")
      return number ? quoted(fmt::format("{}.{}", list, index))
                    : fmt::format("{} .. {}", quoted(list + "."), index);
    w.need(table);
    return table;
  }

  std::string call_text(const Body& body, const std::string& list, const std::string& index,
                        const std::vector<std::string>& arguments, FunctionWriter& w) {
    std::string text;
    for (const std::string& table : body.tables)
      text += (text.empty() ? "" : ", ") + table_argument(table, list, index, w);
    for (const std::string& argument : arguments) text += (text.empty() ? "" : ", ") + argument;
    return fmt::format("block.{}({})", body.name, text);
  }

  void write_run(const Segment& segment, const Run& run, FunctionWriter& w) {
    Body& body = body_of(segment, run);
    const std::string list = list_of(segment.blocks[run.first].path);
    // Tables of instances that no earlier segment of the stage has made.
    bool fresh = false, known = false;
    if (std::find(body.tables.begin(), body.tables.end(), "s") != body.tables.end()) {
      for (size_t k = run.first; k < run.last; ++k)
        (started_.insert(segment.blocks[k].path).second ? fresh : known) = true;
      w.need("s");
      if (fresh && started_.insert(list).second)
        w.raw(fmt::format("s.{} = {{}}", list_field_.at(list)));
    }
    const auto table = [&](const std::string& index) {
      const std::string place = fmt::format("s.{}[{}]", list_field_.at(list), index);
      return known ? fmt::format("{} = {} or {{}}", place, place) : place + " = {}";
    };
    const auto sources = carried(segment, run, body);
    const Shape first = shape(segment, segment.blocks[run.first]);
    const Shape last = shape(segment, segment.blocks[run.last - 1]);
    if (!sources) {
      for (size_t k = run.first; k < run.last; ++k)
        write_single(segment, segment.blocks[k], body,
                     fresh ? table(number_of(segment.blocks[k].path)) : "", w);
      return;
    }
    // Loop variables: results in order, each begun with the external that it follows.
    std::vector<std::string> variables(first.results.size()), arguments;
    for (size_t a = 0; a < body.arguments.size(); ++a) {
      const int slot = first.externals[body.arguments[a]];
      const std::string begin = outer(segment, slot, w);
      if (!(*sources)[a]) {
        arguments.push_back(begin);
        continue;
      }
      const std::string name = w.declare(last.results[*(*sources)[a]]);
      w.raw(fmt::format("local {} = {}", name, begin));
      variables[*(*sources)[a]] = name;
      arguments.push_back(name);
    }
    for (size_t r = 0; r < variables.size(); ++r)
      if (variables[r].empty()) {
        variables[r] = w.declare(last.results[r]);
        w.raw("local " + variables[r]);
      }
    const std::string from = number_of(segment.blocks[run.first].path);
    const std::string to = number_of(segment.blocks[run.last - 1].path);
    const bool down = std::stoll(from) > std::stoll(to);
    w.raw(fmt::format("for i = {}, {}{} do", from, to, down ? ", -1" : ""));
    w.indent(true);
    if (fresh) w.raw(table("i"));
    std::string left;
    for (const std::string& v : variables) left += (left.empty() ? "" : ", ") + v;
    if (!left.empty()) left += " = ";
    w.raw(wrap(left + call_text(body, list, "i", arguments, w), kWidth - 4, "      "));
    w.indent(false);
    w.raw("end");
    for (int slot : last.results) store_top(segment, slot, w);
  }

  void write_single(const Segment& segment, const BlockRun& block, const Body& body,
                    const std::string& first_line, FunctionWriter& w) {
    const Shape s = shape(segment, block);
    const std::string list = list_of(block.path), index = number_of(block.path);
    if (!first_line.empty()) w.raw(first_line);
    std::vector<std::string> arguments;
    for (size_t e : body.arguments) arguments.push_back(outer(segment, s.externals[e], w));
    std::string left, locals;
    for (int slot : s.results) {
      bool local = false;
      const std::string name = w.target(slot, local);
      left += (left.empty() ? "" : ", ") + name;
      if (local) locals += (locals.empty() ? "" : ", ") + name;
    }
    if (!locals.empty()) w.raw("local " + locals);
    if (!left.empty()) left += " = ";
    w.raw(wrap(left + call_text(body, list, index, arguments, w), kWidth - 2, "    "));
  }

  // Keeps a slot for later segments, where it is one of those.
  void store_top(const Segment& segment, int slot, FunctionWriter& w) {
    const auto it = top_field_.find(slot);
    if (it == top_field_.end() || maker_.at(slot) != &segment) return;
    w.need("s");
    w.raw(fmt::format("{} = {}", it->second, w.expression(slot)));
  }

  // One seed, or a list of them.
  std::string seed_name(int slot) const {
    const auto& seeds = program_.seeds;
    for (size_t i = 0; i < seeds.size(); ++i)
      if (seeds[i].second == slot) return fmt::format("seed[{}]", i + 1);
    return "seed";
  }

  static bool read_here(const Segment& segment, int slot) {
    for (const Instr& instr : segment.instrs) {
      const auto in = lower::reads(instr);
      if (std::find(in.begin(), in.end(), slot) != in.end()) return true;
    }
    return std::find(segment.outputs.begin(), segment.outputs.end(), slot) != segment.outputs.end();
  }

  // Expression of a slot at the level of the segment.
  std::string outer(const Segment& segment, int slot, FunctionWriter& w) {
    if (is_saved(segment, slot)) {
      w.need("s");
      return saved_expression(slot);
    }
    return w.expression(slot);
  }

  // --- segments
  // -------------------------------------------------------------------------------------

  std::string nest_text(const graph::Nest& nest, FunctionWriter& w) {
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

  std::string write_segment(const Segment& segment) {
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
      w.raw(fmt::format("local {} = input{}", w.declare(in), index_by(name)));
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
    if (segment.kind == lower::SegmentKind::backward && !program_.input_gradients.empty()) {
      for (const auto& [name, slot] : program_.input_gradients)
        results += fmt::format("{}[{}] = {}", results.empty() ? "{ " : ", ", quoted(name),
                               w.expression(slot));
      results += " }";
    }
    if (!results.empty()) w.raw(wrap("return " + results, kWidth, "    "));
    std::string out = fmt::format("\nlocal function {}({})\n", segment.name,
                                  forward ? "p, s, u, input, ctx" : "p, s, g, seed, ctx");
    if (w.overflow()) out += "  local rest = {}\n";
    for (const std::string& line : w.lines()) out += line + "\n";
    return out + "end\n";
  }

  const Program& program_;
  Operators operators_;
  Groups groups_;
  std::set<std::string> reserved_ = reserved_names();
  std::vector<const Segment*> stage_;    // segments of the stage that is written
  std::map<int, const Segment*> maker_;  // of its saved slots
  std::set<std::string> taken_;          // names of fields that earlier segments keep
  std::map<const Segment*, std::set<int>> read_outside_;
  std::map<int, std::map<int, std::string>> kept_;  // forward body → number → field
  std::map<int, Names> kept_names_;
  std::set<int> top_;
  std::map<int, std::string> top_field_;
  std::map<int, std::string> elsewhere_;  // slot → path of the instance that keeps it
  std::map<std::string, std::string> list_field_;
  std::set<std::string> started_;  // lists and instances that have a table
  std::map<int, Body> bodies_;
  Names body_names_{{}};
  std::string functions_;
};

}  // namespace

std::string key_of(const Program& program) {
  return fmt::format("format=1 graph={} program={} nnscaler={}", hex(program.graph_hash),
                     hex(lower::hash(program)), NNSCALER_VERSION);
}

namespace {

constexpr std::string_view kConfig = "-- config: ";

// The settings in as many lines as they need.
std::string settings_lines(std::string_view config) {
  std::string out;
  while (!config.empty()) {
    size_t length = std::min(config.size(), kWidth - kConfig.size());
    if (const size_t comma = config.rfind(',', length - 1);
        length < config.size() && comma != config.npos)
      length = comma + 1;
    out += fmt::format("{}{}\n", kConfig, config.substr(0, length));
    config.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::string to_lua(const Program& program, const std::string& config) {
  const std::string body = FileWriter(program).body();
  return fmt::format(
             "-- {} ({}), rank {} of {}: written by nnscaler, may be edited.\n"
             "-- It runs as long as the key is that of the model; the second hash tells an edited "
             "file.\n"
             "-- key: {}\n{}-- body: {}\n",
             program.model, program.training ? "training" : "evaluation", program.rank,
             program.world, key_of(program), settings_lines(config), hex(hash_bytes(body))) +
         body;
}

Header read_header(const std::string& text, const std::string& path) {
  const auto field = [&](const std::string& mark) {
    const size_t at = text.find(mark);
    if (at == std::string::npos)
      throw Error(ErrorKind::state,
                  fmt::format("[codegen.header] {} has no line '{}…'", path, mark),
                  "it is not a file that nnscaler wrote: move it away");
    const size_t start = at + mark.size();
    return std::pair(text.substr(start, text.find('\n', start) - start), text.find('\n', start));
  };
  Header header;
  header.key = field("\n-- key: ").first;
  const auto [body, end] = field("\n-- body: ");
  header.body = body;
  const std::string_view head = std::string_view(text).substr(0, std::min(end, text.size()));
  for (size_t at = 0; (at = head.find(kConfig, at)) < head.size();) {
    at += kConfig.size();
    header.config += head.substr(at, head.find('\n', at) - at);
  }
  const std::string below = end == std::string::npos ? "" : text.substr(end + 1);
  header.edited = hex(hash_bytes(below)) != body;
  return header;
}

}  // namespace nns::codegen
