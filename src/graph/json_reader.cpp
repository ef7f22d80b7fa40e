// Strict reading of what JSON forms have in common.
#include "graph/json_reader.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/error.h"

namespace nns::graph {
namespace {

constexpr int kMaxDepth = 64;

ValueRef read_ref(const Item& j, const Path& path) {
  return {read_id(j, path)};
}

// The one entry of {"kind": content}.
std::pair<std::string, Item> tagged(const Item& j, const Path& path) {
  if (!j.is_object() || j.size() != 1) refuse(path, j, "an object with one field");
  return {j.first().key(), j.first()};
}

}  // namespace

std::string Path::text() const {
  if (of_ == nullptr) return std::string(name_);
  if (name_.empty()) return fmt::format("{}[{}]", of_->text(), index_);
  return fmt::format("{}.{}", of_->text(), name_);
}

void refuse(const Path& path, std::string_view got, std::string_view expected) {
  const std::string where = path.text();
  std::string text(got);
  if (text.size() > 60) text = text.substr(0, 57) + "…";
  fail(ErrorKind::state, "[{}.from_json] {}: {}; expected {}",
       where.substr(0, where.find_first_of(".[")), where, text, expected);
}
void refuse(const Path& path, const Item& got, std::string_view expected) {
  refuse(path, got.shown(), expected);
}

int64_t read_int(const Item& j, const Path& path) {
  const auto number = j.integer();
  if (!number) refuse(path, j, "an integer");
  return *number;
}
int read_id(const Item& j, const Path& path) {
  const int64_t x = read_int(j, path);
  if (x < -1 || x > std::numeric_limits<int>::max()) refuse(path, j, "an id");
  return static_cast<int>(x);
}
bool read_bool(const Item& j, const Path& path) {
  if (!j.is_boolean()) refuse(path, j, "true or false");
  return j.is_true();
}
std::string read_string(const Item& j, const Path& path) {
  if (!j.is_string()) refuse(path, j, "a string");
  return j.string();
}
double read_real(const Item& j, const Path& path) {
  if (j.equals("nan")) return std::numeric_limits<double>::quiet_NaN();
  if (j.equals("inf")) return std::numeric_limits<double>::infinity();
  if (j.equals("-inf")) return -std::numeric_limits<double>::infinity();
  const auto number = j.real();
  if (!number) refuse(path, j, "a number");
  return *number;
}
DType read_dtype(const Item& j, const Path& path) {
  const auto dtype = dtype_from_name(read_string(j, path));
  if (!dtype) refuse(path, j, "the name of a dtype");
  return *dtype;
}
std::string read_hex(const Item& j, const Path& path) {
  const std::string text = read_string(j, path);
  const auto digit = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    refuse(path, j, "pairs of hexadecimal digits");
  };
  if (text.size() % 2 != 0) refuse(path, j, "pairs of hexadecimal digits");
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  return bytes;
}

Arg read_arg(const Item& j, const Path& path) {
  if (j.is_null()) return std::monostate{};
  if (j.is_boolean()) return j.is_true();
  if (j.is_string()) return j.string();
  if (const auto number = j.integer()) return *number;
  const auto [kind, content] = tagged(j, path);
  if (kind == "value") return read_ref(content, path);
  if (kind == "values") return read_list(content, path, read_ref);
  if (kind == "real") return read_real(content, path);
  if (kind == "integers") return read_list(content, path, read_int);
  if (kind == "reals") return read_list(content, path, read_real);
  if (kind == "booleans") return read_list(content, path, read_bool);
  if (kind == "dtype") return read_dtype(content, path);
  if (kind == "symbol") return Symbol{read_string(content, path)};
  refuse(path, j, "a kind of argument");
}

Nest read_nest(const Item& j, const Path& path) {
  if (j.is_null()) return {std::monostate{}};
  if (j.is_boolean()) return {j.is_true()};
  if (j.is_string()) return {j.string()};
  const auto [kind, content] = tagged(j, path);
  if (kind == "value") return {read_ref(content, path)};
  if (kind == "real") return {read_real(content, path)};
  if (kind != "table") refuse(path, j, "a value, a real or a table");
  return {read_list(content, path, [](const Item& entry, const Path& place) {
    if (!entry.is_list() || entry.size() != 2) refuse(place, entry, "a pair");
    return std::pair{read_string(entry.at(0), place), read_nest(entry.at(1), place)};
  })};
}

NamedArg read_named_arg(const Item& j, const Path& path) {
  if (!j.is_list() || j.size() != 2) refuse(path, j, "a pair of name and value");
  return {read_string(j.at(0), path), read_arg(j.at(1), path)};
}

JsonText parse_json(std::string_view text, std::string_view kind) {
  try {
    return JsonText(text, kMaxDepth);
  } catch (const std::length_error&) {
    fail(ErrorKind::state, "[{}.from_json] nested deeper than {} levels", kind, kMaxDepth);
  } catch (const Json::exception& e) {
    fail(ErrorKind::state, "[{}.from_json] not JSON: {}", kind, e.what());
  }
}

}  // namespace nns::graph
