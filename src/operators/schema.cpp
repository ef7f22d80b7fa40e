// Look-up and reading of schemas.
#include "operators/schema.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "operators/record.h"

namespace nns::operators {
namespace {

constexpr std::string_view kLines[] = {
#include "operators/schemas.inc"
};

std::string_view name_of(std::string_view line) {
  return line.substr(0, line.find('('));
}

// Pieces between commas that stand in no bracket and no quotes.
std::vector<std::string_view> pieces(std::string_view text) {
  std::vector<std::string_view> out;
  int depth = 0;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c != ',' || depth > 0 || quoted) continue;
    out.push_back(text.substr(start, i - start));
    start = i + 2;  // ", "
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

template <class T>
T number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  NNS_CHECK(error == std::errc() && end == text.data() + text.size(), "'{}' is not a number", text);
  return value;
}

Arg default_of(std::string_view text) {
  if (text == "None") return {};
  if (text == "True" || text == "False") return text == "True";
  if (text.starts_with('"')) return std::string(text.substr(1, text.size() - 2));
  if (text.starts_with('[')) {
    std::vector<int64_t> list;
    for (const std::string_view one : pieces(text.substr(1, text.size() - 2)))
      list.push_back(number<int64_t>(one));
    return list;
  }
  if (text.find_first_of(".e") != std::string_view::npos) return number<double>(text);
  return number<int64_t>(text);
}

std::optional<double> real(const Arg& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return {};
}

bool is_nil(const Arg& value) {
  const auto* ref = std::get_if<Ref>(&value);
  return std::holds_alternative<std::monostate>(value) || (ref != nullptr && ref->id < 0);
}

}  // namespace

const Parameter* Schema::find(std::string_view name) const {
  const auto it = std::find_if(parameters.begin(), parameters.end(),
                               [&](const Parameter& p) { return p.name == name; });
  return it == parameters.end() ? nullptr : &*it;
}

Schema parse_schema(std::string_view text) {
  const size_t open = text.find('('), arrow = text.rfind(") -> ");
  NNS_CHECK(open != std::string_view::npos && arrow != std::string_view::npos, "schema '{}'", text);
  Schema schema;
  bool keyword_only = false;
  for (const std::string_view piece : pieces(text.substr(open + 1, arrow - open - 1))) {
    if (piece == "*") {
      keyword_only = true;
      continue;
    }
    // "Tensor(a!) self", "Scalar alpha=1": the name stands behind the last blank before the '='.
    const size_t equals = std::min(piece.find('='), piece.size());
    const size_t blank = piece.substr(0, equals).rfind(' ');
    NNS_CHECK(blank != std::string_view::npos, "schema '{}': argument '{}'", text, piece);
    Parameter parameter;
    parameter.name = piece.substr(blank + 1, equals - blank - 1);
    parameter.keyword_only = keyword_only;
    parameter.written = piece.substr(0, blank).find('!') != std::string_view::npos;
    if (equals < piece.size()) parameter.otherwise = default_of(piece.substr(equals + 1));
    schema.parameters.push_back(std::move(parameter));
  }
  const std::string_view results = text.substr(arrow + 5);
  schema.returns_list = results.starts_with("Tensor") && results.ends_with("[]");
  return schema;
}

const Schema* schema_of(std::string_view op) {
  if (const Record* record = operators::find(op); record != nullptr && record->schema)
    return &*record->schema;
  thread_local std::map<std::string, Schema, std::less<>> known;
  if (const auto it = known.find(op); it != known.end()) return &it->second;
  const auto line = std::lower_bound(
      std::begin(kLines), std::end(kLines), op,
      [](std::string_view entry, std::string_view name) { return name_of(entry) < name; });
  if (line == std::end(kLines) || name_of(*line) != op) return nullptr;
  return &known.emplace(op, parse_schema(*line)).first->second;
}

bool is_default(const Parameter& parameter, const Arg& value) {
  if (!parameter.otherwise) return false;
  if (is_nil(value)) return is_nil(*parameter.otherwise);
  const auto a = real(value), b = real(*parameter.otherwise);
  return a && b ? *a == *b : value == *parameter.otherwise;
}

bool is_in_place(std::string_view op) {
  const std::string_view base = base_of(op);
  if (!base.ends_with('_')) return false;  // so they are all spelled
  const Schema* schema = schema_of(op);
  if (schema == nullptr) return !base.ends_with("__");  // of a user's library
  return !schema->parameters.empty() && schema->parameters[0].written;
}

std::vector<std::string_view> schema_lines() {
  return {std::begin(kLines), std::end(kLines)};
}

}  // namespace nns::operators
