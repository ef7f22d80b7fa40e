#include "data/tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace nns::data {
namespace {

// llm.c's headers: 256 int32, of which the first three are magic, version and number of tokens.
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801, kVersion32 = 7;
constexpr size_t kHeaderBytes = 1024;

// Returns what the header says, if the bytes begin with one; checks it against their number.
std::optional<TokenFile> header_of(std::string_view bytes, const std::string& path) {
  if (bytes.size() < kHeaderBytes) return {};
  int32_t head[4];
  std::memcpy(head, bytes.data(), sizeof head);
  const bool narrow = head[0] == kMagic16, wide = head[0] == kMagic32;
  if (!narrow && !wide) return {};
  if (head[1] != (narrow ? kVersion16 : kVersion32))
    fail(ErrorKind::data, "[data.tokens] '{}' has version {}; expected {}", path, head[1],
         narrow ? kVersion16 : kVersion32);
  const size_t width = narrow ? 2 : 4;
  const size_t held = (bytes.size() - kHeaderBytes) / width;
  if (head[2] < 0 || static_cast<size_t>(head[2]) * width != bytes.size() - kHeaderBytes)
    fail(ErrorKind::data, "[data.tokens] the header of '{}' says {} tokens; the file holds {}",
         path, head[2], held);
  return TokenFile{head[2], static_cast<int>(width), head[3]};
}

}  // namespace

TokenFile read_token_header(const std::string& path) {
  const MappedFile file(path, "data.tokens");
  const auto header = header_of(file.bytes(), path);
  if (!header) fail(ErrorKind::data, "[data.tokens] '{}' has no header of a token file", path);
  return *header;
}

std::string token_file_bytes(const std::vector<int32_t>& ids, bool wide, int64_t documents) {
  constexpr auto kMost = std::numeric_limits<int32_t>::max();
  if (ids.size() > kMost)
    fail(ErrorKind::data, "[data.tokens] {} tokens for one file; expected at most {}", ids.size(),
         kMost);
  std::string out(kHeaderBytes + ids.size() * (wide ? 4 : 2), '\0');
  const int32_t head[4] = {wide ? kMagic32 : kMagic16, wide ? kVersion32 : kVersion16,
                           static_cast<int32_t>(ids.size()),
                           static_cast<int32_t>(std::min<int64_t>(documents, kMost))};
  std::memcpy(out.data(), head, sizeof head);
  char* to = out.data() + kHeaderBytes;
  for (const int32_t id : ids) {
    const auto narrow = static_cast<uint16_t>(id);
    std::memcpy(to, wide ? static_cast<const void*>(&id) : &narrow, wide ? 4 : 2);
    to += wide ? 4 : 2;
  }
  return out;
}

Tokens::Tokens(std::string path, std::vector<uint16_t> ids)
    : path_(std::move(path)), ids_(std::move(ids)) {
  Part part;
  part.data = reinterpret_cast<const char*>(ids_.data());
  part.size = static_cast<int64_t>(ids_.size());
  add(std::move(part));
}

void Tokens::add(Part part) {
  part.begin = size_;
  size_ += part.size;
  parts_.push_back(std::move(part));
}

Tokens::Part Tokens::open_part(const std::string& path) {
  Part part;
  part.file.emplace(path, "data.tokens");
  const std::string_view bytes = part.file->bytes();
  if (bytes.empty()) fail(ErrorKind::data, "[data.tokens] '{}' is empty; expected token ids", path);
  if (const auto header = header_of(bytes, path)) {
    part.data = bytes.data() + kHeaderBytes;
    part.width = header->width;
    part.size = header->tokens;
    return part;
  }
  if (bytes.size() % 2 != 0)
    fail(ErrorKind::data,
         "[data.tokens] '{}' has {} bytes; expected an even number (16-bit token ids)", path,
         bytes.size());
  part.data = bytes.data();
  part.size = static_cast<int64_t>(bytes.size() / 2);
  return part;
}

Tokens Tokens::open_file(const std::string& path) {
  return open_files(path, {path});
}

Tokens Tokens::open_files(const std::string& path, const std::vector<std::string>& files) {
  Tokens out(path);
  for (const std::string& file : files) out.add(open_part(file));
  return out;
}

void Tokens::copy(int64_t begin, int64_t count, int64_t* out) const {
  NNS_CHECK(begin >= 0 && count >= 0 && begin + count <= size_, "tokens [{}, {}) of {}", begin,
            begin + count, size_);
  const auto after = [](int64_t at, const Part& part) { return at < part.begin; };
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin, after);
  while (count > 0) {
    const Part& p = *(part - 1);
    const int64_t n = std::min(count, p.begin + p.size - begin);
    const char* from = p.data + (begin - p.begin) * p.width;
    for (int64_t i = 0; i < n; ++i) {
      if (p.width == 2) {
        uint16_t id;
        std::memcpy(&id, from + i * 2, 2);
        out[i] = id;
      } else {
        uint32_t id;
        std::memcpy(&id, from + i * 4, 4);
        out[i] = id;
      }
    }
    out += n;
    begin += n;
    count -= n;
    ++part;
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
