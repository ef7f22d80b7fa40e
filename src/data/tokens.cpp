#include "data/tokens.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace nns::data {
namespace {

// llm.c's headers: 256 int32, of which the first three are magic, version and number of tokens.
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801, kVersion32 = 7;
constexpr size_t kHeaderBytes = 1024;

}  // namespace

Tokens::Tokens(MappedFile file, size_t offset, int width)
    : path_(file.path()), file_(std::move(file)), width_(width) {
  data_ = file_->bytes().data() + offset;
  size_ = static_cast<int64_t>((file_->bytes().size() - offset) / static_cast<size_t>(width));
}

Tokens::Tokens(std::string path, std::vector<uint16_t> ids)
    : path_(std::move(path)), ids_(std::move(ids)), size_(static_cast<int64_t>(ids_.size())) {
  data_ = reinterpret_cast<const char*>(ids_.data());
}

Tokens Tokens::open_file(const std::string& path) {
  MappedFile file(path, "data.tokens");
  const std::string_view bytes = file.bytes();
  if (bytes.empty()) fail(ErrorKind::data, "[data.tokens] '{}' is empty; expected token ids", path);
  if (bytes.size() >= kHeaderBytes) {
    int32_t head[3];
    std::memcpy(head, bytes.data(), sizeof head);
    const bool narrow = head[0] == kMagic16, wide = head[0] == kMagic32;
    if (narrow || wide) {
      if (head[1] != (narrow ? kVersion16 : kVersion32))
        fail(ErrorKind::data, "[data.tokens] '{}' has version {}; expected {}", path, head[1],
             narrow ? kVersion16 : kVersion32);
      const size_t width = narrow ? 2 : 4;
      const size_t held = (bytes.size() - kHeaderBytes) / width;
      if (head[2] < 0 || static_cast<size_t>(head[2]) * width != bytes.size() - kHeaderBytes)
        fail(ErrorKind::data, "[data.tokens] the header of '{}' says {} tokens; the file holds {}",
             path, head[2], held);
      return Tokens(std::move(file), kHeaderBytes, static_cast<int>(width));
    }
  }
  if (bytes.size() % 2 != 0)
    fail(ErrorKind::data,
         "[data.tokens] '{}' has {} bytes; expected an even number (16-bit token ids)", path,
         bytes.size());
  return Tokens(std::move(file), 0, 2);
}

void Tokens::copy(int64_t begin, int64_t count, int64_t* out) const {
  NNS_CHECK(begin >= 0 && count >= 0 && begin + count <= size_, "tokens [{}, {}) of {}", begin,
            begin + count, size_);
  const char* from = data_ + begin * width_;
  for (int64_t i = 0; i < count; ++i) {
    if (width_ == 2) {
      uint16_t id;
      std::memcpy(&id, from + i * 2, 2);
      out[i] = id;
    } else {
      uint32_t id;
      std::memcpy(&id, from + i * 4, 4);
      out[i] = id;
    }
  }
}

int64_t Tokens::largest() const {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<int64_t> chunk(static_cast<size_t>(std::min(size_, kChunk)));
  int64_t best = -1;
  for (int64_t at = 0; at < size_; at += kChunk) {
    const int64_t n = std::min(kChunk, size_ - at);
    copy(at, n, chunk.data());
    best = std::max(best, *std::max_element(chunk.begin(), chunk.begin() + n));
  }
  return best;
}

}  // namespace nns::data
