// A regular expression that splits texts. It may come from a stranger's file: matching has limits,
// and running into one is an error, not a wait.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nns::tokenizer {

class Pattern {
 public:
  // Compiles an expression over Unicode characters. Throws a data Error of [tokenizer.read] naming
  // `path` when it is none.
  Pattern(const std::string& expression, const std::string& path);
  // A pattern of this very text.
  static Pattern literal(std::string_view text, const std::string& path);

  struct Piece {
    size_t begin, end;  // bytes
    bool match;         // or what lies between matches
  };
  // Appends the matches and what lies between them, in order; no piece is empty. `text` is UTF-8.
  void split(std::string_view text, std::vector<Piece>& pieces) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace nns::tokenizer
