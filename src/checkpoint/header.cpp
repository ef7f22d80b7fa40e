// Reading a safetensors header that may have been written by an enemy.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/safetensors.h"

namespace nns::safetensors {
namespace {

using json = nlohmann::json;

// Takes the events of the JSON parser and accepts exactly this grammar:
//   { "__metadata__"?: { KEY: STRING, … }, NAME: { "dtype": STRING, "shape": [ n, … ],
//     "data_offsets": [ begin, end ] }, … }
// Keys may not repeat. The first thing wrong is kept in `problem`, and parsing stops.
class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(Header& header) : header_(header) {}
  std::string problem;

  bool start_object(std::size_t) override {
    if (where_ == Where::outside) return go(Where::top);
    if (where_ == Where::top && expecting_value_) {
      expecting_value_ = false;
      if (name_ == "__metadata__") return go(Where::metadata);
      entry_ = Entry{name_, {}, 0, 0};
      dtype_.clear();
      shape_.clear();
      offsets_.clear();
      has_shape_ = has_offsets_ = false;
      return go(Where::tensor);
    }
    return refuse("an object");
  }
  bool end_object() override {
    if (where_ == Where::tensor) return finish_tensor() && go(Where::top);
    if (where_ == Where::metadata) return go(Where::top);
    return go(Where::done);
  }
  bool key(std::string& text) override {
    if (where_ == Where::top) {
      name_ = text;
      if (!names_.insert(text).second)
        return say(fmt::format("the key '{}' stands twice in the header", text));
      expecting_value_ = true;
      return true;
    }
    key_ = text;
    if (where_ == Where::metadata) {
      if (header_.metadata.count(text) != 0)
        return say(fmt::format("the key '{}' stands twice in __metadata__", text));
      return true;
    }
    const bool again = (text == "dtype" && !dtype_.empty()) || (text == "shape" && has_shape_) ||
                       (text == "data_offsets" && has_offsets_);
    if (again) return say(fmt::format("tensor '{}': the key '{}' stands twice", name_, text));
    if (text != "dtype" && text != "shape" && text != "data_offsets")
      return say(fmt::format("tensor '{}': unknown key '{}'", name_, text));
    return true;
  }
  bool start_array(std::size_t) override {
    if (where_ == Where::tensor && key_ == "shape") {
      has_shape_ = true;
      return go(Where::shape);
    }
    if (where_ == Where::tensor && key_ == "data_offsets") {
      has_offsets_ = true;
      return go(Where::offsets);
    }
    return refuse("a list");
  }
  bool end_array() override { return go(Where::tensor); }
  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::shape) {
      shape_.push_back(value);
      return shape_.size() <= 64 || say(fmt::format("tensor '{}' has over 64 dimensions", name_));
    }
    if (where_ == Where::offsets) {
      offsets_.push_back(value);
      return offsets_.size() <= 2 || say(fmt::format("tensor '{}': data_offsets has more than two "
                                                     "numbers",
                                                     name_));
    }
    return refuse("a number");
  }
  bool string(std::string& text) override {
    if (where_ == Where::metadata) {
      header_.metadata[key_] = text;
      return true;
    }
    if (where_ == Where::tensor && key_ == "dtype") {
      dtype_ = text;
      return !text.empty() || say(fmt::format("tensor '{}': the dtype is empty", name_));
    }
    return refuse("a string");
  }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const std::string& text) override {
    return refuse(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception& e) override {
    const std::string_view text = e.what();
    const bool utf8 = text.find("UTF-8") != std::string_view::npos;
    return say(
        fmt::format("the header is not JSON{} (at byte {})", utf8 ? ": bad UTF-8" : "", position));
  }

 private:
  enum class Where { outside, top, metadata, tensor, shape, offsets, done };

  bool go(Where where) {
    where_ = where;
    return true;
  }
  bool say(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  bool refuse(std::string_view what) {
    switch (where_) {
      case Where::outside:
      case Where::done:
        return say(fmt::format("the header is {}; expected an object", what));
      case Where::metadata:
        return say(fmt::format("__metadata__['{}'] is {}; expected a string", key_, what));
      case Where::top:
        return say(fmt::format("tensor '{}' is {}; expected an object", name_, what));
      default:
        return say(fmt::format("tensor '{}': unexpected {} in '{}'", name_, what, key_));
    }
  }
  bool finish_tensor() {
    if (dtype_.empty() || !has_shape_ || offsets_.size() != 2)
      return say(fmt::format("tensor '{}' lacks dtype, shape or two data_offsets", name_));
    const auto dtype = dtype_from_format(dtype_);
    if (!dtype)
      return say(fmt::format("tensor '{}' has dtype '{}'; expected one of {}", name_, dtype_,
                             format_dtypes()));
    entry_.type.dtype = *dtype;
    // Dimensions of size 0 must not hide an overflow of the others: strides are computed from them.
    uint64_t bound = static_cast<uint64_t>(size_of(*dtype));
    bool empty = false;
    for (const uint64_t n : shape_) {
      empty = empty || n == 0;
      if (n != 0 && __builtin_mul_overflow(bound, n, &bound)) bound = kTooLarge;
      if (bound >= kTooLarge)
        return say(
            fmt::format("tensor '{}': the shape has more elements than fit in 64 bits", name_));
      entry_.type.shape.push_back(static_cast<int64_t>(n));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    const uint64_t bytes = empty ? 0 : bound;
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != bytes)
      return say(fmt::format("tensor '{}': data_offsets [{}, {}] do not hold {} of {} bytes", name_,
                             entry_.begin, entry_.end, to_string(entry_.type), bytes));
    header_.entries.push_back(entry_);
    return true;
  }

  static constexpr uint64_t kTooLarge = uint64_t{1} << 63;
  Header& header_;
  Where where_ = Where::outside;
  bool expecting_value_ = false, has_shape_ = false, has_offsets_ = false;
  std::string name_, key_, dtype_;
  std::vector<uint64_t> shape_, offsets_;
  Entry entry_;
  std::set<std::string> names_;
};

// Throws unless the entries cover `size` bytes of data exactly.
template <class Refuse>
void check_cover(const std::vector<Entry>& entries, uint64_t size, const Refuse& refuse) {
  uint64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry& e : entries) {
    if (e.end > size)
      refuse(fmt::format("tensor '{}' ends at byte {} of {} bytes of data: the file is truncated",
                         e.name, e.end, size));
    if (e.begin < at)
      refuse(fmt::format("tensors '{}' and '{}' overlap", before != nullptr ? before->name : "",
                         e.name));
    if (e.begin > at)
      refuse(fmt::format("a hole of {} bytes before tensor '{}'", e.begin - at, e.name));
    at = e.end;
    before = &e;
  }
  if (at != size) refuse(fmt::format("{} trailing bytes after the last tensor", size - at));
}

}  // namespace

Header parse(std::string_view file, std::string_view path, std::string_view area) {
  const auto refuse = [&](std::string_view what) {
    fail(ErrorKind::state, "[{}] '{}' is not a valid safetensors file: {}", area, path, what);
  };
  if (file.size() < 8) refuse(fmt::format("it has {} bytes; expected at least 8", file.size()));
  uint64_t size = 0;
  std::memcpy(&size, file.data(), 8);
  if (size > kMaxHeader)
    refuse(fmt::format("its header claims {} bytes; expected at most {}", size, kMaxHeader));
  if (size > file.size() - 8)
    refuse(fmt::format("its header claims {} bytes, the file has {}: it is truncated", size,
                       file.size()));
  const std::string_view text = file.substr(8, size);
  if (text.empty() || text.front() != '{') refuse("its header does not start with '{'");
  if (text.find('\0') != std::string_view::npos) refuse("its header holds a NUL byte");

  Header header;
  header.data_offset = 8 + size;
  Reader reader(header);
  if (!json::sax_parse(text.begin(), text.end(), &reader)) refuse(reader.problem);
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const Entry& a, const Entry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_cover(header.entries, file.size() - header.data_offset, refuse);
  return header;
}

}  // namespace nns::safetensors
