// A sequence of token ids: memory-mapped files of 16- or 32-bit ids, or a text turned into ids of
// its characters. No LibTorch here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped.h"

namespace nns::data {

// What the header of one of llm.c's files says.
struct TokenFile {
  int64_t tokens = 0;
  int width = 2;          // bytes of an id
  int64_t documents = 0;  // ours alone writes it
};
// Throws as Tokens::open_file does, and when the file has no header.
TokenFile read_token_header(const std::string& path);
// Returns the bytes of a file with a header and these ids, each in 4 bytes if `wide`, else in 2.
// Throws a data Error when there are more than a header can say (2^31 - 1).
std::string token_file_bytes(const std::vector<int32_t>& ids, bool wide, int64_t documents);

class Tokens {
 public:
  // Maps a token file: nanoGPT's bare little-endian uint16 ids, or llm.c's files (1,024-byte header
  // with magic number and count, then uint16 or uint32 ids). Throws when the file is missing or
  // empty, or its size and header disagree.
  static Tokens open_file(const std::string& path);
  // Maps several such files as one sequence; `path` is for messages.
  static Tokens open_files(const std::string& path, const std::vector<std::string>& files);
  // Holds ids in memory; `path` is for messages.
  Tokens(std::string path, std::vector<uint16_t> ids);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Copies ids begin, …, begin + count - 1.
  void copy(int64_t begin, int64_t count, int64_t* out) const;
  // Returns the largest id; reads the whole file.
  int64_t largest() const;

 private:
  // A run of ids of one width, in a file or in ids_.
  struct Part {
    std::optional<MappedFile> file;
    const char* data = nullptr;
    int width = 2;  // bytes of an id
    int64_t begin = 0, size = 0;
  };
  explicit Tokens(std::string path) : path_(std::move(path)) {}
  static Part open_part(const std::string& path);
  void add(Part part);
  std::string path_;
  std::vector<uint16_t> ids_;
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

// The characters of a text, numbered in the order of their code points.
class Characters {
 public:
  // Returns the characters that occur in a UTF-8 text; throws a data Error at bad UTF-8 and when
  // there are more than 65,536.
  static Characters of(std::string_view text, const std::string& path);
  // Takes the characters in order (what `list` returned); throws a state Error unless each item is
  // one character and none repeats.
  explicit Characters(const std::vector<std::string>& list);

  int64_t size() const { return static_cast<int64_t>(points_.size()); }
  std::vector<std::string> list() const;
  // Returns the ids of a text; throws a data Error that names the first character not known.
  std::vector<uint16_t> encode(std::string_view text, const std::string& path) const;
  // Returns the text of the ids; throws a data Error for an id outside [0, size).
  std::string decode(const std::vector<int64_t>& ids) const;

 private:
  Characters() = default;
  void index();
  std::vector<char32_t> points_;  // ascending when made from a text
  std::unordered_map<char32_t, uint16_t> ids_;
};

}  // namespace nns::data
