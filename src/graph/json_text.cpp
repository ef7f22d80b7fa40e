#include "graph/json_text.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"

namespace nns::graph {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A string with its quotes; those with escapes, or bytes beyond ASCII, are the library's to read.
std::string string_of(std::string_view quoted) {
  const std::string_view inside = quoted.substr(1, quoted.size() - 2);
  if (inside.find('\\') == std::string_view::npos) return std::string(inside);
  return nlohmann::json::parse(quoted).get<std::string>();
}

}  // namespace

// Goes over a text once. What it does not take is given to the library, which says what is wrong.
class JsonText::Scanner {
 public:
  Scanner(JsonText& out, int depth) : text_(out.text_), out_(out.entries_), depth_(depth) {}

  bool run() {
    blank();
    if (!value(0)) return false;
    blank();
    return at_ == text_.size();
  }

 private:
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (now() != c) return false;
    ++at_;
    return true;
  }
  void blank() {
    while (now() == ' ' || now() == '\n' || now() == '\t' || now() == '\r') ++at_;
  }

  bool value(int depth, uint32_t key = 0, uint32_t key_end = 0) {
    const size_t number = out_.size();
    out_.push_back({static_cast<uint32_t>(at_), 0, key, key_end, 0, 0});
    uint32_t size = 0;
    if (!content(depth, size)) return false;
    Entry& entry = out_[number];
    entry.end = static_cast<uint32_t>(at_);
    entry.next = static_cast<uint32_t>(out_.size());
    entry.size = size;
    return true;
  }

  bool content(int depth, uint32_t& size) {
    switch (now()) {
      case '{':
      case '[':
        if (depth == depth_) throw std::length_error("too deep");
        return entries(depth + 1, size);
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  bool entries(int depth, uint32_t& size) {
    const bool object = now() == '{';
    const char end = object ? '}' : ']';
    ++at_;
    blank();
    if (take(end)) return true;
    do {
      blank();
      const auto key = static_cast<uint32_t>(at_);
      uint32_t key_end = key;
      if (object) {
        if (!string()) return false;
        key_end = static_cast<uint32_t>(at_);
        blank();
        if (!take(':')) return false;
        blank();
      }
      if (!value(depth, key, key_end)) return false;
      ++size;
      blank();
    } while (take(','));
    return take(end);
  }

  bool string() {
    const size_t begin = at_;
    bool plain = true;
    if (!take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < 32) return false;
      plain = plain && c < 128 && c != '\\';
      if (c == '\\') ++at_;
    }
    return take('"') && (plain || nlohmann::json::accept(text_.substr(begin, at_ - begin)));
  }

  bool word(std::string_view text) {
    if (text_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  bool digits() {
    const size_t begin = at_;
    while (is_digit(now())) ++at_;
    return at_ > begin;
  }
  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('-')) take('+');
    return digits();
  }

  const std::string_view text_;
  std::vector<Entry>& out_;
  const int depth_;
  size_t at_ = 0;
};

JsonText::JsonText(std::string_view text, int depth) : text_(text) {
  if (text.size() >= std::numeric_limits<uint32_t>::max())
    fail(ErrorKind::state, "[json.text] {} bytes of JSON; expected less than 4 GiB", text.size());
  if (Scanner(*this, depth).run()) return;
  const auto parsed = nlohmann::json::parse(text);
  fail(ErrorKind::state, "[json.text] a byte order mark; expected {} at once", parsed.type_name());
}

std::string_view Item::text() const {
  const auto& entry = of_->entries_[number_];
  return of_->text_.substr(entry.begin, entry.end - entry.begin);
}

std::optional<int64_t> Item::integer() const {
  const std::string_view text = this->text();
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::optional<double> Item::real() const {
  const std::string_view text = this->text();
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::string Item::string() const {
  return string_of(text());
}

std::string Item::key() const {
  const auto& entry = of_->entries_[number_];
  return string_of(of_->text_.substr(entry.key, entry.key_end - entry.key));
}

size_t Item::size() const {
  return of_->entries_[number_].size;
}

Item Item::first() const {
  return {*of_, number_ + 1};
}

Item Item::next() const {
  return {*of_, of_->entries_[number_].next};
}

Item Item::at(size_t entry) const {
  Item out = first();
  for (; entry > 0; --entry) out = out.next();
  return out;
}

std::optional<Item> Item::find(std::string_view field) const {
  Item out = first();
  for (size_t i = size(); i > 0; --i, out = out.next()) {
    const auto& entry = of_->entries_[out.number_];
    const auto quoted = of_->text_.substr(entry.key, entry.key_end - entry.key);
    if (quoted.substr(1, quoted.size() - 2) == field || out.key() == field) return out;
  }
  return std::nullopt;
}

std::string Item::shown() const {
  return nlohmann::ordered_json::parse(text()).dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace nns::graph
