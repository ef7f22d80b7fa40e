#include "tokenizer/byte_level.h"

#include <atomic>

#include "base/error.h"

namespace nns::tokenizer {
namespace {

// Words come again and again: what they became, on this thread, of one tokenizer.
struct Cache {
  static constexpr size_t kMostWords = 1 << 16, kLongest = 64;
  uint64_t owner = 0;
  std::unordered_map<std::string, std::vector<int32_t>> words;
};
thread_local Cache cache;

}  // namespace

uint64_t ByteLevel::next_serial() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

void ByteLevel::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() > Cache::kLongest) return bpe.encode(word, out);
  if (cache.owner != serial_ || cache.words.size() >= Cache::kMostWords) {
    cache.words.clear();
    cache.owner = serial_;
  }
  const auto [place, fresh] = cache.words.try_emplace(std::string(word));
  if (fresh) bpe.encode(word, place->second);
  out.insert(out.end(), place->second.begin(), place->second.end());
}

void ByteLevel::encode_piece(std::string_view piece, size_t at, std::vector<int32_t>& out) const {
  if (at == steps.size()) return encode_word(piece, out);
  const Step& step = steps[at];
  if (step.kind == Step::Kind::prefix) {
    if (piece[0] == ' ') return encode_piece(piece, at + 1, out);
    return encode_piece(" " + std::string(piece), at + 1, out);
  }
  std::vector<Pattern::Piece> parts;
  step.pattern[0].split(piece, parts);
  for (const auto& part : parts)
    if (!(part.match ? step.drop_matches : step.drop_gaps))
      encode_piece(piece.substr(part.begin, part.end - part.begin), at + 1, out);
}

void ByteLevel::encode(std::string_view text, const EncodeOptions& options,
                       std::vector<int32_t>& out) const {
  if (const auto bad = bad_utf8(text))
    fail(ErrorKind::data, "[tokenizer.encode] the text is not UTF-8: byte {} is 0x{:02x}", *bad,
         static_cast<unsigned char>(text[*bad]));
  if (options.special) out.insert(out.end(), before.begin(), before.end());
  for (const auto& outer : raw.split(text)) {
    const std::string_view part = text.substr(outer.begin, outer.end - outer.begin);
    if (outer.id >= 0) {
      out.push_back(outer.id);
      continue;
    }
    std::string formed;
    for (size_t i = 0; i < forms.size(); ++i) formed = normalize(i == 0 ? part : formed, forms[i]);
    const std::string_view whole = forms.empty() ? part : std::string_view(formed);
    for (const auto& inner : normalized.split(whole)) {
      if (inner.id >= 0)
        out.push_back(inner.id);
      else
        encode_piece(whole.substr(inner.begin, inner.end - inner.begin), 0, out);
    }
  }
  if (options.special) out.insert(out.end(), after.begin(), after.end());
}

std::string ByteLevel::decode(const std::vector<int64_t>& list) const {
  std::string out;
  for (const int64_t id : list) {
    if (id < 0 || id >= ids)
      fail(ErrorKind::data, "[tokenizer.decode] id {} is outside the vocabulary of {}", id, ids);
    const auto found = bytes.find(static_cast<int32_t>(id));
    if (found != bytes.end()) out += found->second;
  }
  return out;
}

std::optional<int32_t> ByteLevel::id_of(const std::string& token) const {
  const auto found = names.find(token);
  if (found == names.end()) return {};
  return found->second;
}

}  // namespace nns::tokenizer
