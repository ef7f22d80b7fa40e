// Text to token ids and back: byte-level BPE as `tokenizer.json` describes it, or a SentencePiece
// model. A file is bytes that anybody may have written: what it says is checked before it is used,
// and what it asks for beyond that is refused by its name. No LibTorch here.
//
//   const auto tokenizer = nns::tokenizer::open_file("llama/tokenizer.json");
//   std::vector<int32_t> ids;
//   tokenizer->encode("Hello", {}, ids);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nns::tokenizer {

struct EncodeOptions {
  bool special = true;  // put tokens around the text as the file's post-processor says (BOS)
};

// Immutable: any number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids are below.
  virtual int64_t size() const = 0;
  // Appends the ids of a text. Throws a data Error when it is not UTF-8.
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids) const = 0;
  // Returns the bytes of the ids, without special tokens; they may end inside a character. Throws a
  // data Error for an id that no token has.
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;
  // Returns the id of a token by its name in the file ("<|endoftext|>").
  virtual std::optional<int32_t> id_of(const std::string& token) const = 0;
};

// Returns the file of a folder, tokenizer.json or else tokenizer.model; any other path as it is.
// Throws a usage Error for a folder without.
std::string find_file(const std::string& path);

// Opens a `tokenizer.json`, a SentencePiece `.model`, or a folder with one of them. Throws a usage
// Error when there is none, a data Error that begins with [tokenizer.read] for one that is broken
// or asks for what is not here.
std::shared_ptr<const Tokenizer> open_file(const std::string& path);

// Reads the text of a tokenizer.json; `path` is for messages.
std::shared_ptr<const Tokenizer> read_json(std::string_view text, const std::string& path);

}  // namespace nns::tokenizer
