// Places of the keys in a recipe, by reading its tokens. A recipe may compute its table as it
// likes; what is written as a literal is found, the rest gets the place of the `return`.
#include <cctype>
#include <set>

#include "base/error.h"
#include "job/parse.h"

namespace nns::job {
namespace {

struct Token {
  enum Kind { name, text, number, symbol, end } kind = end;
  std::string text_;
  int line = 0;
  bool is(std::string_view s) const { return kind != text && text_ == s; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : s_(text) {}

  std::vector<Token> all() {
    std::vector<Token> out;
    do out.push_back(next());
    while (out.back().kind != Token::end);
    return out;
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < s_.size() ? s_[at_ + ahead] : '\0'; }
  char take() {
    const char c = peek();
    if (c == '\n') ++line_;
    ++at_;
    return c;
  }

  // Level of a long bracket that opens here ([[ is 0, [=[ is 1), or -1.
  int long_bracket() const {
    size_t n = 1;
    while (peek(n) == '=') ++n;
    return peek() == '[' && peek(n) == '[' ? static_cast<int>(n - 1) : -1;
  }

  std::string long_text(int level) {
    at_ += static_cast<size_t>(level) + 2;
    const std::string close = "]" + std::string(static_cast<size_t>(level), '=') + "]";
    std::string out;
    while (at_ < s_.size() && s_.compare(at_, close.size(), close) != 0) out += take();
    at_ += close.size();
    return out;
  }

  void skip_blank() {
    while (at_ < s_.size()) {
      if (std::isspace(static_cast<unsigned char>(peek())) != 0) {
        take();
      } else if (peek() == '-' && peek(1) == '-') {
        at_ += 2;
        const int level = long_bracket();
        if (level >= 0)
          long_text(level);
        else
          while (at_ < s_.size() && peek() != '\n') take();
      } else {
        return;
      }
    }
  }

  Token next() {
    skip_blank();
    Token t;
    t.line = line_;
    if (at_ >= s_.size()) return t;
    const char c = peek();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
      t.kind = Token::name;
      while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '_')
        t.text_ += take();
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      t.kind = Token::number;
      while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '.' ||
             ((peek() == '-' || peek() == '+') && (t.text_.back() == 'e' || t.text_.back() == 'E')))
        t.text_ += take();
    } else if (c == '\'' || c == '"') {
      t.kind = Token::text;
      take();
      while (at_ < s_.size() && peek() != c && peek() != '\n') {
        if (peek() == '\\') take();
        t.text_ += take();
      }
      take();
    } else if (const int level = long_bracket(); level >= 0) {
      t.kind = Token::text;
      t.text_ = long_text(level);
    } else {
      t.kind = Token::symbol;
      t.text_ = std::string(1, take());
      if ((c == '=' || c == '~' || c == '<' || c == '>') && peek() == '=') t.text_ += take();
    }
    return t;
  }

  std::string_view s_;
  size_t at_ = 0;
  int line_ = 1;
};

class Scanner {
 public:
  Scanner(std::string_view text, const std::string& file)
      : tokens_(Lexer(text).all()), file_(file) {}

  Places run() {
    Places out;
    const size_t ret = last_return();
    out.table = {file_, tokens_[ret].line, 0};
    size_t at = ret + 1;
    if (!tokens_[ret].is("return")) return out;
    if (tokens_[at].kind == Token::name && tokens_[at + 1].kind == Token::end)
      at = initialiser(tokens_[at].text_, ret);
    if (at != 0 && tokens_[at].is("{")) table(at, "", out);
    return out;
  }

 private:
  // Whether the token opens (+1) or closes (-1) a bracket or block.
  static int step(const Token& t) {
    static const std::set<std::string_view> open{"function", "if", "do", "repeat", "(", "[", "{"};
    static const std::set<std::string_view> close{"end", "until", ")", "]", "}"};
    if (t.kind != Token::name && t.kind != Token::symbol) return 0;
    return open.count(t.text_) != 0 ? 1 : close.count(t.text_) != 0 ? -1 : 0;
  }

  size_t last_return() const {
    size_t found = 0;
    int depth = 0;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      depth += step(tokens_[i]);
      if (depth == 0 && tokens_[i].kind == Token::name && tokens_[i].is("return")) found = i;
    }
    return found;
  }

  // Index of the `{` in the last `local NAME = {` of the chunk before `limit`, or 0.
  size_t initialiser(const std::string& name, size_t limit) const {
    size_t found = 0;
    int depth = 0;
    for (size_t i = 0; i + 3 < limit; ++i) {
      if (depth == 0 && tokens_[i].is("local") && tokens_[i + 1].is(name) &&
          tokens_[i + 2].is("=") && tokens_[i + 3].is("{"))
        found = i + 3;
      depth += step(tokens_[i]);
    }
    return found;
  }

  // Reads the table whose `{` is at `at`; returns the index after its `}`.
  size_t table(size_t at, const std::string& prefix, Places& out) {
    int items = 0;
    ++at;
    while (tokens_[at].kind != Token::end && !tokens_[at].is("}")) {
      std::string key;
      const int line = tokens_[at].line;
      if (tokens_[at].kind == Token::name && tokens_[at + 1].is("=")) {
        key = tokens_[at].text_;
        at += 2;
      } else if (tokens_[at].is("[") && tokens_[at + 1].kind == Token::text &&
                 tokens_[at + 2].is("]") && tokens_[at + 3].is("=")) {
        key = tokens_[at + 1].text_;
        at += 4;
      } else if (!tokens_[at].is("[")) {
        key = std::to_string(items++);
      }
      const std::string path = prefix.empty() ? key : prefix + "." + key;
      if (!key.empty()) {
        const auto [before, fresh] = out.marks.try_emplace(path, Mark{file_, line, 0});
        if (!fresh)
          fail(ErrorKind::usage, "[job.key] {}:{}: duplicate key '{}', first written at {}", file_,
               line, path, to_string(before->second));
      }
      at = value(at, path, !key.empty(), out);
      if (tokens_[at].is(",") || tokens_[at].is(";")) ++at;
    }
    return tokens_[at].kind == Token::end ? at : at + 1;
  }

  // Skips an expression; a literal table is read.
  size_t value(size_t at, const std::string& path, bool named, Places& out) {
    if (tokens_[at].is("{") && named) at = table(at, path, out);
    int depth = 0;
    while (tokens_[at].kind != Token::end) {
      if (depth == 0 && (tokens_[at].is(",") || tokens_[at].is(";") || tokens_[at].is("}"))) break;
      depth += step(tokens_[at]);
      ++at;
    }
    return at;
  }

  std::vector<Token> tokens_;
  std::string file_;
};

void mark_below(Value& value, const std::string& path, const Mark& above, const Places& places) {
  const auto found = places.marks.find(path);
  value.mark = found != places.marks.end() ? found->second : above;
  const std::string prefix = path.empty() ? "" : path + ".";
  for (size_t i = 0; i < value.items.size(); ++i)
    mark_below(value.items[i], prefix + std::to_string(i), value.mark, places);
  for (Field& f : value.fields) mark_below(f.value, prefix + f.key, value.mark, places);
}

}  // namespace

Places scan_lua(std::string_view text, const std::string& file) {
  return Scanner(text, file).run();
}

void mark_from(Value& value, const Places& places) {
  mark_below(value, "", places.table, places);
}

}  // namespace nns::job
