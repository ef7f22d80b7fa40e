// Parser of dimension annotations.
#include "annotate/grammar.h"

#include <fmt/ranges.h>

#include <cctype>
#include <set>

#include "base/error.h"

namespace nns::annotate {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Annotation parse() {
    Annotation a;
    a.inputs = shapes(false);
    if (!take("->")) refuse("',' or '->'");
    a.outputs = shapes(true);
    if (skip_space(); at_ < text_.size()) refuse("',' or the end");
    return a;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;

  [[noreturn]] void refuse(std::string_view expected) const {
    const std::string got =
        at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : std::string("the end");
    fail(ErrorKind::plan, "[annotate.grammar] '{}': {} at position {}; expected {}", text_, got,
         at_, expected);
  }
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  static bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

  std::vector<ShapeNote> shapes(bool may_be_none) {
    std::vector<ShapeNote> out;
    if (may_be_none && peek() == '\0') return out;
    do out.push_back(shape());
    while (take(","));
    return out;
  }

  ShapeNote shape() {
    ShapeNote s;
    if (take("?")) {
      s.ignored = true;
    } else {
      while (is_word(peek()) || peek() == '(' || peek() == '*') s.dims.push_back(dim());
      if (s.dims.empty()) refuse("an identifier, an integer, '(', '*' or '?'");
      int stars = 0;
      for (const Dim& d : s.dims) stars += d.star ? 1 : 0;
      if (stars > 1) refuse("one '*' in a shape at most");
    }
    if (take(":")) {
      if (peek() != '/') refuse("'/' after ':'");
      while (take("/")) {
        s.keeps_gradient = true;
        if (is_word(peek())) s.keeps.push_back(word());
      }
    }
    return s;
  }

  Dim dim() {
    Dim d;
    if (take("*")) {
      d.star = true;
      d.parts.push_back({"*", mark(), {}});
    } else if (take("(")) {
      d.bracket = true;
      while (is_word(peek())) d.parts.push_back(identifier());
      if (d.parts.empty()) refuse("an identifier in the bracket");
      if (!take(")")) refuse("an identifier or ')'");
    } else {
      d.parts.push_back(identifier());
    }
    return d;
  }

  std::string word() {
    const size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  Identifier identifier() {
    Identifier id;
    const size_t start = at_;
    id.name = word();
    if (is_digit(id.name[0])) {
      const bool number =
          id.name.size() <= 18 && id.name.find_first_not_of("0123456789") == std::string::npos;
      if (!number) {
        at_ = start;
        refuse("an identifier that starts with a letter, or an integer");
      }
      id.literal = std::stoll(id.name);
    }
    id.mark = mark();
    if (id.literal) id.mark = Mark::frozen;
    return id;
  }

  Mark mark() {  // directly behind the identifier
    if (at_ < text_.size() && text_[at_] == '+') return ++at_, Mark::sum;
    if (at_ < text_.size() && text_[at_] == '^') return ++at_, Mark::frozen;
    return Mark::spatial;
  }
};

void check_names(const Annotation& a, std::string_view text) {
  std::map<std::string, Mark> marks;
  std::set<std::string> of_inputs;
  bool star_in_inputs = false;
  for (const bool output : {false, true})
    for (const ShapeNote& shape : output ? a.outputs : a.inputs)
      for (const Dim& dim : shape.dims) {
        if (dim.star && output && !star_in_inputs)
          fail(ErrorKind::plan,
               "[annotate.grammar] '{}': '*' in an output; expected one in an input", text);
        star_in_inputs = star_in_inputs || dim.star;
        for (const Identifier& id : dim.parts) {
          if (id.literal) continue;
          // An output may leave the mark out, as in "m k+ -> m k": it is that of the inputs.
          const auto [known, added] = marks.emplace(id.name, id.mark);
          if (!added && known->second != id.mark && !(output && id.mark == Mark::spatial))
            fail(ErrorKind::plan,
                 "[annotate.grammar] '{}': '{}' has two marks; expected the same everywhere", text,
                 id.name);
          if (!output) of_inputs.insert(id.name);
        }
      }
  for (const ShapeNote& shape : a.inputs)
    for (const std::string& name : shape.keeps)
      if (!of_inputs.contains(name))
        fail(ErrorKind::plan, "[annotate.grammar] '{}': '/{}' names no dim of an input", text,
             name);
}

std::string text_of(const Identifier& id) {
  if (id.literal) return id.name;
  return id.name + (id.mark == Mark::sum ? "+" : id.mark == Mark::frozen ? "^" : "");
}

std::string text_of(const ShapeNote& shape) {
  std::vector<std::string> dims;
  for (const Dim& dim : shape.dims) {
    std::vector<std::string> parts;
    for (const Identifier& id : dim.parts) parts.push_back(text_of(id));
    const std::string inner = fmt::format("{}", fmt::join(parts, " "));
    dims.push_back(dim.bracket ? "(" + inner + ")" : inner);
  }
  std::string out = shape.ignored ? "?" : fmt::format("{}", fmt::join(dims, " "));
  if (shape.keeps_gradient) out += shape.keeps.empty() ? " : /" : " :";
  for (const std::string& name : shape.keeps) out += " /" + name;
  return out;
}

}  // namespace

Annotation Annotation::parse(std::string_view text) {
  Annotation a = Parser(text).parse();
  check_names(a, text);
  return a;
}

std::string Annotation::text() const {
  std::vector<std::string> left, right;
  for (const ShapeNote& s : inputs) left.push_back(text_of(s));
  for (const ShapeNote& s : outputs) right.push_back(text_of(s));
  return fmt::format("{} -> {}", fmt::join(left, ", "), fmt::join(right, ", "));
}

}  // namespace nns::annotate
