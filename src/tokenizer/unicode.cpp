#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace nns::tokenizer {
namespace {

const utf8proc_uint8_t* data_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

// The character at the start, and its bytes (0 at the end of the text).
utf8proc_int32_t first(std::string_view text, size_t& length) {
  utf8proc_int32_t c = -1;
  const auto n = utf8proc_iterate(data_of(text), static_cast<utf8proc_ssize_t>(text.size()), &c);
  length = n > 0 ? static_cast<size_t>(n) : 0;
  return c;
}

utf8proc_int32_t last(std::string_view text, size_t& length) {
  size_t at = text.size();
  while (at > 0 && (static_cast<unsigned char>(text[--at]) & 0xC0) == 0x80) {
  }
  const auto c = first(text.substr(at), length);
  return c;
}

bool is_space(utf8proc_int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(utf8proc_int32_t c) {
  if (c < 0) return false;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<size_t> bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    size_t length;
    first(text.substr(at), length);
    if (length == 0) return at;
    at += length;
  }
  return {};
}

std::string normalize(std::string_view text, Form form) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::nfkc || form == Form::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto length = utf8proc_map(data_of(text), static_cast<utf8proc_ssize_t>(text.size()), &made,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(made, &std::free);
  if (length < 0)
    fail(ErrorKind::data, "[tokenizer.encode] the text cannot be normalised: {}",
         utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(length)};
}

bool ends_in_word(std::string_view text) {
  size_t length;
  return !text.empty() && is_word(last(text, length));
}

bool begins_with_word(std::string_view text) {
  size_t length;
  return !text.empty() && is_word(first(text, length));
}

size_t space_at_end(std::string_view text) {
  const size_t whole = text.size();
  size_t length;
  while (!text.empty() && is_space(last(text, length))) text.remove_suffix(length);
  return whole - text.size();
}

size_t space_at_start(std::string_view text) {
  const size_t whole = text.size();
  size_t length;
  while (!text.empty() && is_space(first(text, length))) text.remove_prefix(length);
  return whole - text.size();
}

}  // namespace nns::tokenizer
