// Strict reading of what JSON forms have in common.
#include "graph/json_reader.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace nns::graph {
namespace {

constexpr int kMaxDepth = 64;

ValueRef read_ref(const Json& j, const std::string& path) {
  return {read_id(j, path)};
}

// The one entry of {"kind": content}.
std::pair<std::string, Json> tagged(const Json& j, const std::string& path) {
  if (!j.is_object() || j.size() != 1) refuse(path, j, "an object with one field");
  return {j.begin().key(), j.begin().value()};
}

}  // namespace

void refuse(const std::string& path, const Json& got, std::string_view expected) {
  std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "…";
  fail(ErrorKind::state, "[{}.from_json] {}: {}; expected {}",
       path.substr(0, path.find_first_of(".[")), path, text, expected);
}

int64_t read_int(const Json& j, const std::string& path) {
  const bool fits =
      j.is_number_integer() && !(j.is_number_unsigned() && j.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) refuse(path, j, "an integer");
  return j.get<int64_t>();
}
int read_id(const Json& j, const std::string& path) {
  const int64_t x = read_int(j, path);
  if (x < -1 || x > std::numeric_limits<int>::max()) refuse(path, j, "an id");
  return static_cast<int>(x);
}
bool read_bool(const Json& j, const std::string& path) {
  if (!j.is_boolean()) refuse(path, j, "true or false");
  return j.get<bool>();
}
std::string read_string(const Json& j, const std::string& path) {
  if (!j.is_string()) refuse(path, j, "a string");
  return j.get<std::string>();
}
double read_real(const Json& j, const std::string& path) {
  if (j == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (j == "inf") return std::numeric_limits<double>::infinity();
  if (j == "-inf") return -std::numeric_limits<double>::infinity();
  if (!j.is_number()) refuse(path, j, "a number");
  return j.get<double>();
}
DType read_dtype(const Json& j, const std::string& path) {
  const auto dtype = dtype_from_name(read_string(j, path));
  if (!dtype) refuse(path, j, "the name of a dtype");
  return *dtype;
}
std::string read_hex(const Json& j, const std::string& path) {
  constexpr std::string_view digits = "0123456789abcdef";
  const std::string text = read_string(j, path);
  if (text.size() % 2 != 0 || text.find_first_not_of(digits) != std::string::npos)
    refuse(path, j, "pairs of hexadecimal digits");
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(digits.find(text[i]) * 16 + digits.find(text[i + 1]));
  return bytes;
}

Arg read_arg(const Json& j, const std::string& path) {
  if (j.is_null()) return std::monostate{};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number_integer()) return read_int(j, path);
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

Nest read_nest(const Json& j, const std::string& path) {
  if (j.is_null()) return {std::monostate{}};
  if (j.is_boolean()) return {j.get<bool>()};
  if (j.is_string()) return {j.get<std::string>()};
  const auto [kind, content] = tagged(j, path);
  if (kind == "value") return {read_ref(content, path)};
  if (kind == "real") return {read_real(content, path)};
  if (kind != "table") refuse(path, j, "a value, a real or a table");
  return {read_list(content, path, [](const Json& entry, const std::string& place) {
    if (!entry.is_array() || entry.size() != 2) refuse(place, entry, "a pair");
    return std::pair{read_string(entry[0], place), read_nest(entry[1], place)};
  })};
}

NamedArg read_named_arg(const Json& j, const std::string& path) {
  if (!j.is_array() || j.size() != 2) refuse(path, j, "a pair of name and value");
  return {read_string(j[0], path), read_arg(j[1], path)};
}

Json parse_json(std::string_view text, std::string_view kind) {
  const auto limit = [kind](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth)
      fail(ErrorKind::state, "[{}.from_json] nested deeper than {} levels", kind, kMaxDepth);
    return true;
  };
  try {
    return Json::parse(text, limit);
  } catch (const Json::exception& e) {
    fail(ErrorKind::state, "[{}.from_json] not JSON: {}", kind, e.what());
  }
}

}  // namespace nns::graph
