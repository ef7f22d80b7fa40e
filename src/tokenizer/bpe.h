// Byte-pair encoding over bytes: which token each byte is, and which pairs of tokens merge, the
// earlier ones of the file first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nns::tokenizer {

// The characters that stand for bytes in byte-level files, as code points: printable bytes for
// themselves, the others from U+0100 on.
const std::array<char32_t, 256>& byte_characters();
// Returns the bytes that a token of such characters stands for; false where one stands for none.
bool bytes_of_token(std::string_view token, std::string& bytes);

class Bpe {
 public:
  struct Merge {
    int32_t rank = 0, result = 0;
  };
  std::array<int32_t, 256> byte_ids{};
  std::unordered_map<uint64_t, Merge> merges;            // by pair_key
  std::unordered_map<std::string, int32_t> whole_words;  // taken as they are, by their bytes

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Appends the ids of one word. Takes n log n steps for n bytes, whatever they are.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
};

}  // namespace nns::tokenizer
