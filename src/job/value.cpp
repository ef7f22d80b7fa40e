#include "job/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace nns::job {

std::string to_string(const Mark& mark) {
  if (mark.line == 0) return mark.file;
  if (mark.column == 0) return fmt::format("{}:{}", mark.file, mark.line);
  return fmt::format("{}:{}:{}", mark.file, mark.line, mark.column);
}

const Value* Value::find(std::string_view key) const {
  for (const Field& f : fields)
    if (f.key == key) return &f.value;
  return nullptr;
}

Value* Value::find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(key));
}

Value& Value::field(std::string_view key) {
  if (kind == Kind::null) kind = Kind::map;
  if (Value* found = find(key)) return *found;
  fields.push_back({std::string(key), {}});
  return fields.back().value;
}

bool Value::erase(std::string_view key) {
  return std::erase_if(fields, [&](const Field& f) { return f.key == key; }) != 0;
}

Value Value::of_text(std::string text, Mark mark) {
  Value v;
  v.kind = Kind::text;
  v.text = std::move(text);
  v.mark = std::move(mark);
  return v;
}

Value Value::of_number(double number, Mark mark) {
  Value v;
  v.kind = Kind::number;
  v.number = number;
  v.text = number_text(number);
  v.mark = std::move(mark);
  return v;
}

Value Value::of_boolean(bool boolean, Mark mark) {
  Value v;
  v.kind = Kind::boolean;
  v.boolean = boolean;
  v.text = boolean ? "true" : "false";
  v.mark = std::move(mark);
  return v;
}

std::string number_text(double number) {
  if (std::isnan(number)) return ".nan";
  if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
  if (std::floor(number) == number && std::fabs(number) < 1e15)
    return fmt::format("{:.0f}", number);
  return fmt::format("{}", number);  // the shortest text that reads back as the same number
}

void check_count(size_t values, const Mark& mark) {
  if (values > kMostValues)
    throw Error(ErrorKind::usage,
                fmt::format("[job.size] {}: more than {} values; expected a job of fewer",
                            to_string(mark), kMostValues),
                "what is repeated counts as often as it occurs; keep data in files");
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::boolean:
      return value.boolean ? "true" : "false";
    case Value::Kind::number:
      return fmt::format("the number {}",
                         value.text.empty() ? number_text(value.number) : value.text);
    case Value::Kind::text:
      return fmt::format("the text '{}'", value.text);
    case Value::Kind::list:
      return "a list";
    case Value::Kind::map:
      return value.fields.empty() ? "an empty table" : "a table";
    case Value::Kind::opaque:
      return "a " + value.text;
  }
  return "";
}

namespace {

bool digits(std::string_view s, size_t& at) {
  const size_t start = at;
  while (at < s.size() && s[at] >= '0' && s[at] <= '9') ++at;
  return at > start;
}

// [-+]? (digits [. digits?] | . digits) ([eE] [-+]? digits)?
bool looks_like_number(std::string_view s) {
  size_t at = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
  const bool whole = digits(s, at);
  if (at < s.size() && s[at] == '.') {
    ++at;
    const bool fraction = digits(s, at);
    if (!whole && !fraction) return false;
  } else if (!whole) {
    return false;
  }
  if (at < s.size() && (s[at] == 'e' || s[at] == 'E')) {
    ++at;
    if (at < s.size() && (s[at] == '-' || s[at] == '+')) ++at;
    if (!digits(s, at)) return false;
  }
  return at == s.size();
}

}  // namespace

Value scalar(std::string_view s, Mark mark) {
  Value v;
  if (s.empty() || s == "~" || s == "null" || s == "Null" || s == "NULL") {
    v.mark = std::move(mark);
  } else if (s == "true" || s == "True" || s == "TRUE") {
    v = Value::of_boolean(true, std::move(mark));
  } else if (s == "false" || s == "False" || s == "FALSE") {
    v = Value::of_boolean(false, std::move(mark));
  } else if (s == ".inf" || s == "+.inf") {
    v = Value::of_number(std::numeric_limits<double>::infinity(), std::move(mark));
  } else if (s == "-.inf") {
    v = Value::of_number(-std::numeric_limits<double>::infinity(), std::move(mark));
  } else if (looks_like_number(s)) {
    double number = 0;
    const size_t plus = s[0] == '+' ? 1 : 0;
    const auto read = std::from_chars(s.data() + plus, s.data() + s.size(), number);
    // Out of range: 1e400 is infinite, 1e-400 is 0.
    if (read.ec != std::errc()) number = std::strtod(std::string(s).c_str(), nullptr);
    v = Value::of_number(number, std::move(mark));
  } else {
    return Value::of_text(std::string(s), std::move(mark));
  }
  v.text = s;
  return v;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = path.find('.', start);
    parts.emplace_back(path.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

namespace {

// Edits (insert, delete, replace, swap of neighbours) between two names.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& c : candidates) {
    // A name given without the group it belongs to: clip_gnorm for optimizer.clip_gnorm.
    const size_t dot = c.rfind('.');
    const bool tail = dot != std::string::npos && std::string_view(c).substr(dot + 1) == name;
    const size_t d = tail ? 1 : distance(name, c);
    if (d < least && d < std::max(name.size(), c.size())) {
      least = d;
      best = c;
    }
  }
  return best;
}

}  // namespace nns::job
