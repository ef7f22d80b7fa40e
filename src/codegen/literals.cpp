#include "codegen/literals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lower/uses.h"

namespace nns::codegen {
namespace {

constexpr std::array kKeywords = {"and",   "break", "do",       "else", "elseif", "end",
                                  "false", "for",   "function", "goto", "if",     "in",
                                  "local", "nil",   "not",      "or",   "repeat", "return",
                                  "then",  "true",  "until",    "while"};

// Which of several overloads has the plain name; the others carry theirs.
int rank_of(std::string_view overload) {
  constexpr std::array kOrder = {"", "Tensor", "int", "dim_IntList", "dim", "self"};
  const auto it = std::find(kOrder.begin(), kOrder.end(), overload);
  return static_cast<int>(it - kOrder.begin());
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (static_cast<unsigned char>(c) < 32 || c == 127)
      out += fmt::format("\\{:03d}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "'";
}

std::string real(double value) {
  if (std::isnan(value)) return "0/0";
  if (std::isinf(value)) return value > 0 ? "math.huge" : "-math.huge";
  const std::string shortest = fmt::format("{}", value);
  return shortest.ends_with(".0") ? shortest.substr(0, shortest.size() - 2) : shortest;
}

bool is_identifier(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (char c : text)
    if (c != '_' && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))
      return false;
  return std::find(kKeywords.begin(), kKeywords.end(), text) == kKeywords.end();
}

std::string index_by(std::string_view key) {
  if (is_identifier(key)) return fmt::format(".{}", key);
  const bool number = !key.empty() && key.size() < 10 &&
                      key.find_first_not_of("0123456789") == std::string_view::npos &&
                      (key == "0" || key[0] != '0');
  return number ? fmt::format("[{}]", key) : fmt::format("[{}]", quoted(key));
}

std::string index_path(std::string_view dotted) {
  std::string out;
  while (!dotted.empty()) {
    const size_t end = std::min(dotted.find('.'), dotted.size());
    out += index_by(dotted.substr(0, end));
    dotted.remove_prefix(std::min(end + 1, dotted.size()));
  }
  return out;
}

std::string identifier(std::string_view hint) {
  std::string name;
  for (char c : hint) name += is_identifier(fmt::format("x{}", c)) ? c : '_';
  while (name.size() > 1 && name.front() == '_') name.erase(0, 1);
  return is_identifier(name) ? name : "x_" + name;
}

std::string Names::fresh(std::string_view hint) {
  const std::string base = identifier(hint.empty() ? "x" : hint);
  if (used_.insert(base).second) return base;
  for (int& n = last_.try_emplace(base, 1).first->second;;) {
    std::string name = fmt::format("{}_{}", base, ++n);
    if (used_.insert(name).second) return name;
  }
}

Operators::Operators(const lower::Program& program) {
  std::map<std::string, std::vector<std::string>> overloads;  // "aten::add" → overloads used
  const auto see = [&](const lower::Instr& instr) {
    if (instr.op.empty() || lower::is_again(instr)) return;
    const size_t dot = std::min(instr.op.find('.'), instr.op.size());
    auto& list = overloads[instr.op.substr(0, dot)];
    const std::string overload = dot < instr.op.size() ? instr.op.substr(dot + 1) : "";
    if (std::find(list.begin(), list.end(), overload) == list.end()) list.push_back(overload);
  };
  for (const lower::Instr& instr : program.casts) see(instr);
  for (const auto& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs) see(instr);
  for (auto& [base, list] : overloads) {
    std::sort(list.begin(), list.end(), [](const std::string& a, const std::string& b) {
      return std::pair(rank_of(a), a) < std::pair(rank_of(b), b);
    });
    const std::string space = base.substr(0, base.find("::"));
    const std::string plain = base.substr(base.find("::") + 2);
    for (size_t i = 0; i < list.size(); ++i) {
      std::string name = plain;
      if (i > 0 || rank_of(list[i]) > 5) name += "_" + list[i];
      name = identifier(name);
      const std::string op = list[i].empty() ? plain : plain + "." + list[i];
      tables_[space][name] = op;
      calls_[space + "::" + op] = fmt::format("{}.{}", space, name);
    }
  }
}

const std::string& Operators::call(std::string_view op) const {
  return calls_.find(op)->second;
}

std::string wrap(const std::string& line, size_t width, const std::string& indent) {
  if (line.size() <= width) return line;
  std::string out, current;
  size_t start = 0;
  const auto flush = [&](std::string piece) {
    const size_t room = out.empty() && current.empty() ? 0 : current.size();
    if (room > 0 && room + piece.size() > width) {
      while (!current.empty() && current.back() == ' ') current.pop_back();
      out += current + "\n";
      current = indent;
      while (!piece.empty() && piece.front() == ' ') piece.erase(0, 1);
    }
    current += piece;
  };
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\'' && (i == 0 || line[i - 1] != '\\')) in_string = !in_string;
    const bool comma = line[i] == ',',
               opens = line[i] == '(' && i + 1 < line.size() && line[i + 1] != ')';
    const bool equals = i > 0 && line[i] == ' ' && line[i - 1] == '=' && line.find("local ") != i;
    if (in_string || !(comma || opens || equals)) continue;
    flush(line.substr(start, i + 1 - start));
    start = i + 1;
  }
  flush(line.substr(start));
  return out + current;
}

}  // namespace nns::codegen
