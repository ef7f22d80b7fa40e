// Functions of repeated blocks, and the loops that call them.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "codegen/file.h"
#include "codegen/lists.h"
#include "codegen/literals.h"
#include "lower/uses.h"

namespace nns::codegen {
namespace {

constexpr size_t kMostArguments = 60;  // of a function of ours, and results; more go in a table

}  // namespace

std::vector<FileWriter::Run> FileWriter::runs_of(const Segment& segment) {
  std::vector<Run> runs;
  const auto& b = segment.blocks;
  for (size_t i = 0; i < b.size(); ++i) {
    const bool joined = !runs.empty() && b[i].body == b[i - 1].body &&
                        b[i].first == b[i - 1].last && list_of(b[i].path) == list_of(b[i - 1].path);
    if (joined)
      runs.back().last = i + 1;
    else
      runs.push_back({i, i + 1});
  }
  return runs;
}

Body& FileWriter::body_of(const Segment& segment, const Run& run) {
  const BlockRun& first = segment.blocks[run.first];
  if (const auto it = bodies_.find(first.body); it != bodies_.end()) return it->second;
  Body& body = bodies_[first.body];
  body.name = body_names_.fresh(fmt::format("{}_{}", last_part(list_of(first.path)), segment.name));
  const BlockSlots& s = block_slots(segment, first);
  body.arguments_in_table = s.externals.size() > kMostArguments;
  body.results_in_table = s.results.size() > kMostArguments;
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
    body.arguments.push_back(k);
    std::string name = fmt::format("given[{}]", body.arguments.size());
    if (body.arguments_in_table) {
      w.bind(slot, name);
    } else {
      name = w.declare(slot);
      arguments += ", " + name;
    }
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
  if (body.arguments_in_table) arguments = ", given";
  write_instrs(segment, first.first, first.last, w);
  std::vector<std::string> made;
  for (int slot : s.results) made.push_back(w.expression(slot));
  const std::string results =
      body.results_in_table ? list_text(made) : fmt::format("{}", fmt::join(made, ", "));
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

std::optional<std::vector<std::optional<size_t>>> FileWriter::carried(const Segment& segment,
                                                                      const Run& run,
                                                                      const Body& body) {
  const size_t n = run.last - run.first;
  if (n < 2 || body.arguments_in_table || body.results_in_table) return std::nullopt;
  const int64_t step = std::stoll(last_part(segment.blocks[run.first + 1].path)) -
                       std::stoll(last_part(segment.blocks[run.first].path));
  std::vector<BlockSlots> shapes;
  for (size_t k = 0; k < n; ++k) {
    shapes.push_back(block_slots(segment, segment.blocks[run.first + k]));
    if (k > 0 && std::stoll(last_part(segment.blocks[run.first + k].path)) -
                         std::stoll(last_part(segment.blocks[run.first + k - 1].path)) !=
                     step)
      return std::nullopt;
  }
  std::vector<std::optional<size_t>> sources;
  std::set<size_t> taken;
  for (size_t e : body.arguments) {
    bool same = true;
    for (size_t k = 1; k < n; ++k) same = same && shapes[k].externals[e] == shapes[0].externals[e];
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

std::string FileWriter::table_argument(const std::string& table, const std::string& list,
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

std::string FileWriter::call_text(const Body& body, const std::string& list,
                                  const std::string& index,
                                  const std::vector<std::string>& arguments, FunctionWriter& w) {
  std::string text;
  for (const std::string& table : body.tables)
    text += (text.empty() ? "" : ", ") + table_argument(table, list, index, w);
  const auto add = [&](const std::string& argument) {
    text += (text.empty() ? "" : ", ") + argument;
  };
  if (body.arguments_in_table)
    add(list_text(arguments));
  else
    for (const std::string& argument : arguments) add(argument);
  return fmt::format("block.{}({})", body.name, text);
}

void FileWriter::write_run(const Segment& segment, const Run& run, FunctionWriter& w) {
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
  const BlockSlots& first = block_slots(segment, segment.blocks[run.first]);
  const BlockSlots& last = block_slots(segment, segment.blocks[run.last - 1]);
  if (!sources) {
    for (size_t k = run.first; k < run.last; ++k) {
      if (k > run.first) start(segment, segment.blocks[k].first, w);
      if (k + 1 < run.last && gathers_ahead(segment, run))
        w.raw(ahead_text(segment, run, last_part(segment.blocks[k + 1].path), w));
      write_single(segment, segment.blocks[k], body,
                   fresh ? table(last_part(segment.blocks[k].path)) : "", w);
    }
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
    w.raw(fmt::format("{} = {}", FunctionWriter::declaration(name), begin));
    variables[*(*sources)[a]] = name;
    arguments.push_back(name);
  }
  for (size_t r = 0; r < variables.size(); ++r)
    if (variables[r].empty()) {
      variables[r] = w.declare(last.results[r]);
      if (!variables[r].starts_with("rest.")) w.raw("local " + variables[r]);
    }
  const std::string from = last_part(segment.blocks[run.first].path);
  const std::string to = last_part(segment.blocks[run.last - 1].path);
  const bool down = std::stoll(from) > std::stoll(to);
  w.raw(fmt::format("for i = {}, {}{} do", from, to, down ? ", -1" : ""));
  w.indent(true);
  if (gathers_ahead(segment, run))
    w.raw(fmt::format("if i ~= {} then {} end", to,
                      ahead_text(segment, run, next_index(segment, run), w)));
  if (fresh) w.raw(table("i"));
  std::string left;
  for (const std::string& v : variables) left += (left.empty() ? "" : ", ") + v;
  if (!left.empty()) left += " = ";
  w.raw(wrap(left + call_text(body, list, "i", arguments, w), kWidth - 4, "      "));
  start_sums(segment, run, w);
  w.indent(false);
  w.raw("end");
  for (int slot : last.results) store_top(segment, slot, w);
}

bool FileWriter::gathers_ahead(const Segment& segment, const Run& run) {
  return std::any_of(segment.ahead.begin(), segment.ahead.end(), [&](const lower::Ahead& mark) {
    return run.first < mark.block && mark.block < run.last;
  });
}

std::string FileWriter::next_index(const Segment& segment, const Run& run) {
  const auto number = [&](size_t k) { return std::stoll(last_part(segment.blocks[k].path)); };
  const int64_t step = number(run.first + 1) - number(run.first);
  return fmt::format("i {} {}", step < 0 ? '-' : '+', std::abs(step));
}

std::string FileWriter::ahead_text(const Segment& segment, const Run& run, const std::string& index,
                                   FunctionWriter& w) {
  Body& body = body_of(segment, run);
  const BlockRun& first = segment.blocks[run.first];
  if (body.ahead_tables.empty()) {
    FunctionWriter own(program_, operators_, groups_, first.path, reserved_);
    for (const size_t i : lower::gathers_of(program_, segment, first))
      own.gather_ahead(segment.instrs[i]);
    for (const char* table : kTables)
      if (own.needs().contains(table)) body.ahead_tables.emplace_back(table);
    functions_ += fmt::format("\n-- begins what block.{} gathers\nfunction block.{}_ahead({})\n",
                              body.name, body.name, fmt::join(body.ahead_tables, ", "));
    for (const std::string& line : own.lines()) functions_ += line + "\n";
    functions_ += "end\n";
  }
  std::string text;
  for (const std::string& table : body.ahead_tables)
    text += (text.empty() ? "" : ", ") + table_argument(table, list_of(first.path), index, w);
  return fmt::format("block.{}_ahead({})", body.name, text);
}

void FileWriter::write_single(const Segment& segment, const BlockRun& block, const Body& body,
                              const std::string& first_line, FunctionWriter& w) {
  const BlockSlots& s = block_slots(segment, block);
  const std::string list = list_of(block.path), index = last_part(block.path);
  if (!first_line.empty()) w.raw(first_line);
  std::vector<std::string> arguments;
  for (size_t e : body.arguments) arguments.push_back(outer(segment, s.externals[e], w));
  std::string left = result_text(body, s.results, w);
  if (!left.empty()) left += " = ";
  w.put_line(left + call_text(body, list, index, arguments, w));
  if (!body.results_in_table) return;
  for (int slot : s.results) store_top(segment, slot, w);
}

std::string FileWriter::result_text(const Body& body, const std::vector<int>& results,
                                    FunctionWriter& w) {
  if (body.results_in_table) {
    const std::string table = w.fresh_local("made");
    for (size_t r = 0; r < results.size(); ++r)
      w.bind(results[r], fmt::format("{}[{}]", table, r + 1));
    return FunctionWriter::declaration(table);
  }
  std::string left, locals;
  for (int slot : results) {
    bool local = false;
    const std::string name = w.target(slot, local);
    left += (left.empty() ? "" : ", ") + name;
    if (local) locals += (locals.empty() ? "" : ", ") + name;
  }
  if (!locals.empty()) w.raw("local " + locals);
  return left;
}

}  // namespace nns::codegen
