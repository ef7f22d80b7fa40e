// What tokenizers ask of Unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nns::tokenizer {

// Returns the place of the first byte that is not UTF-8, if there is one.
std::optional<size_t> bad_utf8(std::string_view text);

enum class Form { nfc, nfd, nfkc, nfkd };
// Returns a UTF-8 text in a normal form.
std::string normalize(std::string_view text, Form form);

// Whether the character that ends or begins a UTF-8 text is one of a word (letter, mark, digit,
// connector); false for an empty text.
bool ends_in_word(std::string_view text);
bool begins_with_word(std::string_view text);
// Bytes of the white space that a UTF-8 text ends or begins with.
size_t space_at_end(std::string_view text);
size_t space_at_start(std::string_view text);

}  // namespace nns::tokenizer
