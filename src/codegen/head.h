// What stands at the top of a generated file: the weights of the rank, and its groups of ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/program.h"

namespace nns::codegen {

// Lua names of the groups of ranks in which a program, or its step, communicates.
class Groups {
 public:
  explicit Groups(const lower::Program& program);
  const std::string& name(const Shape& ranks) const { return names_.at(ranks); }
  std::string name(const std::vector<int>& ranks) const {
    return names_.at(Shape(ranks.begin(), ranks.end()));
  }
  bool empty() const { return order_.empty() && sums_.empty(); }
  // "local tp = rt.group { 0, 1, 2, 3 }", one per line.
  std::string lines() const;
  std::vector<std::string> all_names() const;
  // Whether an argument of a call is a group.
  static bool is_group(const lower::Instr& instr, const lower::NamedArg& arg);

 private:
  std::map<Shape, std::string> names_;
  std::vector<Shape> order_;
  std::vector<Shape> sums_;  // of those that only the step has
};

// Comment lines that tell each parameter and buffer of a rank with its part; those of repeated
// blocks in one line.
std::string weight_lines(const lower::Program& program);

}  // namespace nns::codegen
