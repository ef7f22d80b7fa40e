// Strict reading of JSON forms: every field must be there with its type, unknown fields are
// refused. Errors name the place: "graph.nodes[3].op: 7; expected a string". Paths begin with the
// kind of what is read.
#pragma once

#include <nlohmann/json.hpp>

#include "graph/graph.h"

namespace nns::graph {

using Json = nlohmann::ordered_json;

// Throws the state Error "[KIND.from_json] PATH: GOT; expected EXPECTED".
[[noreturn]] void refuse(const std::string& path, const Json& got, std::string_view expected);

int64_t read_int(const Json& j, const std::string& path);
int read_id(const Json& j, const std::string& path);  // -1 and up
bool read_bool(const Json& j, const std::string& path);
std::string read_string(const Json& j, const std::string& path);
double read_real(const Json& j, const std::string& path);  // also "inf", "-inf", "nan"
DType read_dtype(const Json& j, const std::string& path);
std::string read_hex(const Json& j, const std::string& path);  // bytes
Arg read_arg(const Json& j, const std::string& path);
NamedArg read_named_arg(const Json& j, const std::string& path);
Nest read_nest(const Json& j, const std::string& path);

// How the same are written.
std::string to_hex(const std::string& bytes);
Json write_arg(const Arg& arg);
Json write_nest(const Nest& nest);

template <class F>
auto read_list(const Json& j, const std::string& path, F one) {
  if (!j.is_array()) refuse(path, j, "a list");
  std::vector<decltype(one(j, path))> out;
  for (size_t i = 0; i < j.size(); ++i)
    out.push_back(one(j[i], path + "[" + std::to_string(i) + "]"));
  return out;
}
template <class F>
auto list_reader(F one) {
  return [one](const Json& j, const std::string& path) { return read_list(j, path, one); };
}
// Lists of pairs.
template <class F, class S>
auto pair_reader(F first, S second) {
  return list_reader([first, second](const Json& j, const std::string& path) {
    if (!j.is_array() || j.size() != 2) refuse(path, j, "a pair");
    return std::pair{first(j[0], path), second(j[1], path)};
  });
}

// An object whose fields are taken one by one; `done` refuses what is left.
class Fields {
 public:
  Fields(const Json& j, std::string path) : j_(j), path_(std::move(path)) {
    if (!j.is_object()) refuse(path_, j, "an object");
  }
  template <class F>
  auto take(const char* key, F read) {
    const auto it = j_.find(key);
    if (it == j_.end()) refuse(path_, j_, "a field '" + std::string(key) + "'");
    ++taken_;
    return read(*it, path_ + "." + key);
  }
  void done() {
    if (taken_ != j_.size()) refuse(path_, j_, std::to_string(taken_) + " fields");
  }

 private:
  const Json& j_;
  std::string path_;
  size_t taken_ = 0;
};

// Parses a text of a kind ("graph"), nested 64 levels at most.
Json parse_json(std::string_view text, std::string_view kind);

}  // namespace nns::graph
