// Texts as sequences of Unicode code points.
#include <algorithm>

#include "base/error.h"
#include "data/tokens.h"

namespace nns::data {
namespace {

constexpr size_t kMostCharacters = 65536;  // ids are 16 bits wide

// Calls f(code point, byte offset) for each character; throws at bad UTF-8 (also overlong forms,
// surrogates and what is beyond U+10FFFF).
template <class F>
void for_each_character(std::string_view text, const std::string& path, const F& f) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const unsigned char first = byte(i);
    if (first < 0x80) {
      f(static_cast<char32_t>(first), i++);
      continue;
    }
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    char32_t point = first & (0x7F >> length);
    bool good = first >= 0xC2 && first <= 0xF4 && i + length <= text.size();
    for (size_t k = 1; good && k < length; ++k) {
      good = (byte(i + k) & 0xC0) == 0x80;
      point = point << 6 | (byte(i + k) & 0x3F);
    }
    static constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!good || point < least[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      fail(ErrorKind::data, "[data.characters] '{}' is not UTF-8 text: byte {} is 0x{:02x}", path,
           i, first);
    f(point, i);
    i += length;
  }
}

std::string utf8(char32_t c) {
  std::string out;
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
  return out;
}

}  // namespace

void Characters::index() {
  for (size_t i = 0; i < points_.size(); ++i) ids_.emplace(points_[i], static_cast<uint16_t>(i));
}

Characters Characters::of(std::string_view text, const std::string& path) {
  Characters out;
  std::vector<bool> seen(0x110000);
  for_each_character(text, path, [&](char32_t c, size_t) { seen[c] = true; });
  for (char32_t c = 0; c < seen.size(); ++c)
    if (seen[c]) out.points_.push_back(c);
  if (out.points_.size() > kMostCharacters)
    fail(ErrorKind::data, "[data.characters] '{}' has {} different characters; expected at most {}",
         path, out.points_.size(), kMostCharacters);
  out.index();
  return out;
}

Characters::Characters(const std::vector<std::string>& list) {
  if (list.size() > kMostCharacters)
    fail(ErrorKind::state, "[data.characters] a vocabulary of {} characters; expected at most {}",
         list.size(), kMostCharacters);
  for (const std::string& item : list) {
    size_t count = 0;
    for_each_character(item, "vocabulary", [&](char32_t c, size_t) {
      points_.push_back(c);
      ++count;
    });
    if (count != 1)
      fail(ErrorKind::state, "[data.characters] vocabulary item '{}' is not one character", item);
  }
  index();
  if (ids_.size() != points_.size())
    fail(ErrorKind::state, "[data.characters] a character stands twice in the vocabulary");
}

std::vector<std::string> Characters::list() const {
  std::vector<std::string> out;
  for (const char32_t c : points_) out.push_back(utf8(c));
  return out;
}

std::vector<uint16_t> Characters::encode(std::string_view text, const std::string& path) const {
  std::vector<uint16_t> out;
  out.reserve(text.size());
  for_each_character(text, path, [&](char32_t c, size_t at) {
    const auto it = ids_.find(c);
    if (it == ids_.end())
      fail(ErrorKind::data,
           "[data.characters] the character '{}' at byte {} of '{}' is not in the vocabulary of {}",
           utf8(c), at, path, points_.size());
    out.push_back(it->second);
  });
  return out;
}

std::string Characters::decode(const std::vector<int64_t>& ids) const {
  std::string out;
  for (const int64_t id : ids) {
    if (id < 0 || id >= size())
      fail(ErrorKind::data, "[data.characters] id {} is outside the vocabulary of {}", id, size());
    out += utf8(points_[static_cast<size_t>(id)]);
  }
  return out;
}

}  // namespace nns::data
