// Tokens that stand beside the vocabulary: they are cut out of a text before anything else looks at
// it, the longest of those that begin first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nns::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;          // not beside a character of a word
  bool left = false, right = false;  // takes the white space on that side with it
  bool normalized = false;           // is looked for in the normalised text
  bool special = false;              // not part of decoded text
};

class AddedTokens {
 public:
  void add(AddedToken token);

  struct Piece {
    size_t begin, end;  // bytes
    int32_t id;         // -1: text between tokens
  };
  // Returns the tokens in a text and what lies between them, in order; no piece is empty.
  std::vector<Piece> split(std::string_view text) const;

 private:
  std::array<std::vector<AddedToken>, 256> by_first_;  // byte; the longest first
  bool empty_ = true;
};

}  // namespace nns::tokenizer
