// Writes the statements of one generated function: a segment, or the body of a repeated block.
#pragma once

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/head.h"
#include "codegen/literals.h"
#include "lower/program.h"

namespace nns::codegen {

using lower::Instr;
using lower::Program;

// What a function may take beside tensors, in the order of its parameters:
//   w, dw, db   parameters, gradients and new buffer contents of the block (tables by name)
//   p, g, u     the same of the whole model
//   s           tensors kept for backward
//   ctx         seed, step, micro and constants      path   of the block, for random keys
inline constexpr const char* kTables[] = {"w", "dw", "db", "p", "g", "u", "s", "ctx", "path"};

// Operators whose result is a list of tensors, which comes as a table.
bool returns_list(std::string_view op);

class FunctionWriter {
 public:
  // `path` is the block's module path, or empty in a segment.
  FunctionWriter(const Program& program, const Operators& operators, const Groups& groups,
                 std::string path, std::set<std::string> reserved);

  // Binds a slot to an expression that exists before the first statement.
  void bind(int slot, std::string expression) { expression_[slot] = std::move(expression); }
  // Declares a fresh local for the slot and returns its name (arguments, loop variables).
  std::string declare(int slot);
  // A variable that is free in the whole function: a local, or where those are used up a field of
  // `rest`; and how its first assignment begins.
  std::string fresh_local(const std::string& hint);
  static std::string declaration(const std::string& name);
  // Stores the slot, when it is made, in this field ("s.x") instead of a local.
  void store(int slot, std::string field) { field_[slot] = std::move(field); }

  void statement(const Instr& instr);
  // Begins what the instruction, a gather of a weight, ends.
  void gather_ahead(const Instr& instr) {
    put_line(fmt::format("gather_ahead({})", arguments(instr)));
  }
  // One turn of a loop in place of all of them. `last_use` is by slot: the last instruction of the
  // segment that reads it, SIZE_MAX where others read it later.
  void loop(const lower::Segment& segment, const lower::Loop& loop,
            const std::vector<size_t>& last_use);
  void raw(const std::string& line) { lines_.push_back(indent_ + line); }
  void put_line(const std::string& line);  // the same, wrapped
  void indent(bool more) { more ? indent_ += "  " : indent_.erase(0, 2); }

  // Expression of a slot: a local, a field of the saved values, a parameter.
  std::string expression(int slot);
  // The variables of slots go on under the names of others ("x" before and after a block).
  void rename(int from, int to) { expression_[to] = expression_.at(from); }
  // Name for results of a block: a field where stored, else a new or reused local.
  // Sets `local` when the name has to be declared.
  std::string target(int slot, bool& local);
  void freed(int slot);
  Names& names() { return names_; }

  const std::vector<std::string>& lines() const { return lines_; }
  // Of kTables, those that the statements use.
  const std::set<std::string>& needs() const { return needs_; }
  void need(const std::string& table) { needs_.insert(table); }
  bool overflow() const { return overflow_; }
  // From now on every tensor is a field of `rest`, so that the statements may be cut into several
  // functions.
  void spill() {
    spill_ = true;
    locals_ = SIZE_MAX;
  }

 private:
  struct ValueWriter;
  class LoopWriter;

  std::string value(const lower::NamedArg& arg, const Instr& instr);
  // Of an argument that is a text: 'text' .. more, and what a key of random numbers becomes.
  std::string text_value(const lower::NamedArg& arg, const Instr& instr, const std::string& text,
                         const std::string& more);
  std::string arguments(const Instr& instr);
  std::string vjp(const Instr& instr);
  std::string parameter(int slot, std::string_view tree);
  // "dw.mlp.c_fc, 'weight'": the table that holds a parameter's field, and the field.
  std::string field_of(int slot, std::string_view tree);
  std::string comment(const Instr& instr) const;
  void put(std::string code, const Instr& instr);
  void call(const Instr& instr);
  void call_many(const Instr& instr, const std::string& right, bool is_list, size_t count);
  void release(const Instr& instr);
  std::string hint_of(int slot) const;

  const Program& program_;
  const Operators& operators_;
  const Groups& groups_;
  std::string path_;
  Names names_;
  std::set<std::string> needs_;
  std::map<int, std::string> expression_, field_;
  std::map<std::string, std::vector<std::string>> free_;  // by hint
  std::map<int, std::string> hint_;
  std::vector<std::string> lines_;
  std::string indent_ = "  ";
  size_t locals_ = 0;
  int stand_ins_ = 0;  // slots beyond those of the program: what a loop reads in each turn
  bool overflow_ = false, spill_ = false;
};

}  // namespace nns::codegen
