#include "tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace nns::tokenizer {
namespace {

struct Symbol {
  int32_t id;
  int64_t previous, next;  // -1 at the ends
  bool gone;
};

struct Candidate {
  int32_t rank;
  int64_t position;
  int32_t result;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

const std::array<char32_t, 256>& byte_characters() {
  static const auto table = [] {
    std::array<char32_t, 256> out{};
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool shown = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      out[b] = shown ? b : next++;
    }
    return out;
  }();
  return table;
}

bool bytes_of_token(std::string_view token, std::string& bytes) {
  static const auto byte_of = [] {
    std::unordered_map<char32_t, unsigned char> out;
    for (size_t b = 0; b < 256; ++b) out[byte_characters()[b]] = static_cast<unsigned char>(b);
    return out;
  }();
  bytes.clear();
  for (size_t i = 0; i < token.size();) {
    const auto first = static_cast<unsigned char>(token[i]);
    char32_t c = first;
    size_t length = 1;
    if (first >= 0x80) {  // all such characters have two bytes
      if (first < 0xC2 || first > 0xDF || i + 1 >= token.size()) return false;
      c = (first & 0x1Fu) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3Fu);
      length = 2;
    }
    const auto found = byte_of.find(c);
    if (found == byte_of.end()) return false;
    bytes += static_cast<char>(found->second);
    i += length;
  }
  return true;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (!whole_words.empty()) {
    const auto whole = whole_words.find(std::string(word));
    if (whole != whole_words.end()) return ids.push_back(whole->second);
  }
  const auto count = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int64_t at) {
    const Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.next < 0) return;
    const auto merge = merges.find(pair_key(left.id, symbols[static_cast<size_t>(left.next)].id));
    if (merge != merges.end()) queue.push({merge->second.rank, at, merge->second.result});
  };
  for (int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    symbols[static_cast<size_t>(i)] = {byte_ids[byte], i - 1, i + 1 < count ? i + 1 : -1, false};
  }
  for (int64_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const auto merge = merges.find(pair_key(left.id, right.id));
    if (merge == merges.end() || merge->second.result != top.result) continue;  // out of date
    left.id = top.result;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) offer(left.previous);
    offer(top.position);
  }
  for (int64_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace nns::tokenizer
