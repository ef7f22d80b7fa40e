// Lua spelling of names and values.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lower/program.h"

namespace nns::codegen {

std::string quoted(std::string_view text);  // 'text'
std::string real(double value);             // 17 digits, math.huge, 0/0
bool is_identifier(std::string_view text);
// Index of a table by key: ".name", "[3]" or "['odd name']".
std::string index_by(std::string_view key);
// Index by a dotted path: "transformer.h.0.weight" → ".transformer.h[0].weight".
std::string index_path(std::string_view dotted);
// A valid Lua name made of a hint ("c_attn", "2nd" → "x_2nd").
std::string identifier(std::string_view hint);

// Names that are taken in one function, and those that are free again.
class Names {
 public:
  explicit Names(std::set<std::string> reserved) : used_(std::move(reserved)) {}
  // A name that begins with `hint`, not in use.
  std::string fresh(std::string_view hint);
  bool take(const std::string& name) { return used_.insert(name).second; }

 private:
  std::set<std::string> used_;
  std::map<std::string, int> last_;  // number of the last name of a hint
};

// How the operators of a program are called: "aten::add.Tensor" → "aten.add".
class Operators {
 public:
  explicit Operators(const lower::Program& program);
  const std::string& call(std::string_view op) const;
  // Per namespace: (Lua name, operator), sorted.
  const std::map<std::string, std::map<std::string, std::string>>& tables() const {
    return tables_;
  }

 private:
  std::map<std::string, std::string, std::less<>> calls_;
  std::map<std::string, std::map<std::string, std::string>> tables_;
};

// Breaks a line at its commas so that no part is longer than `width`; later parts are indented.
std::string wrap(const std::string& line, size_t width, const std::string& indent);

}  // namespace nns::codegen
