// A tokenizer.json with a byte-level BPE (GPT-2, Llama 3, Qwen), once it is read: the steps from a
// text to ids, in the order in which they run.
#pragma once

#include <unordered_map>
#include <vector>

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace nns::tokenizer {

// One step of the pre-tokenizer.
struct Step {
  enum class Kind {
    split,   // by `pattern`; matches stay as pieces of their own, or go away
    prefix,  // a space before a piece that has none
  };
  Kind kind = Kind::split;
  std::vector<Pattern> pattern;  // one, for split
  bool drop_matches = false, drop_gaps = false;
};

class ByteLevel : public Tokenizer {
 public:
  std::vector<Form> forms;             // normalisation
  AddedTokens raw, normalized;         // added tokens: of the text, of the normalised text
  std::vector<Step> steps;             // pre-tokenizer
  Bpe bpe;                             // model
  std::vector<int32_t> before, after;  // of the post-processor
  std::unordered_map<int32_t, std::string> bytes;  // of each token that text has
  std::unordered_map<std::string, int32_t> names;
  int64_t ids = 0;

  int64_t size() const override { return ids; }
  void encode(std::string_view text, const EncodeOptions& options,
              std::vector<int32_t>& out) const override;
  std::string decode(const std::vector<int64_t>& list) const override;
  std::optional<int32_t> id_of(const std::string& token) const override;

 private:
  void encode_piece(std::string_view piece, size_t step, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  const uint64_t serial_ = next_serial();
  static uint64_t next_serial();
};

}  // namespace nns::tokenizer
