#include "tokenizer/added.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace nns::tokenizer {

void AddedTokens::add(AddedToken token) {
  auto& list = by_first_[static_cast<unsigned char>(token.content[0])];
  const auto longer = [&](const AddedToken& other) {
    return other.content.size() < token.content.size();
  };
  list.insert(std::find_if(list.begin(), list.end(), longer), std::move(token));
  empty_ = false;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text) const {
  std::vector<Piece> out;
  size_t done = 0;
  for (size_t at = 0; !empty_ && at < text.size();) {
    const AddedToken* found = nullptr;
    for (const AddedToken& token : by_first_[static_cast<unsigned char>(text[at])])
      if (text.substr(at, token.content.size()) == token.content) {
        found = &token;
        break;
      }
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    at = end;
    if (found->single_word &&
        (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (found->left) begin = std::max(done, begin - space_at_end(text.substr(0, begin)));
    if (found->right) end += space_at_start(text.substr(end));
    if (begin > done) out.push_back({done, begin, -1});
    out.push_back({begin, end, found->id});
    done = at = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace nns::tokenizer
