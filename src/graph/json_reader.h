// Strict reading of JSON forms: every field must be there with its type, unknown fields are
// refused. Errors name the place: "graph.nodes[3].op: 7; expected a string". Paths begin with the
// kind of what is read.
#pragma once

#include <nlohmann/json.hpp>

#include "graph/graph.h"
#include "graph/json_text.h"

namespace nns::graph {

using Json = nlohmann::ordered_json;

// Where a part of a document stands: "program.segments[0].instrs". It is put together where
// somebody asks for it, and holds what it was made of by reference.
class Path {
 public:
  Path(const char* root) : name_(root) {}  // NOLINT(google-explicit-constructor)
  Path(const Path& of, std::string_view field) : of_(&of), name_(field) {}
  Path(const Path& of, size_t index) : of_(&of), index_(index) {}
  std::string text() const;

 private:
  const Path* of_ = nullptr;
  std::string_view name_;  // empty: an entry of a list
  size_t index_ = 0;
};

// Throws the state Error "[KIND.from_json] PATH: GOT; expected EXPECTED".
[[noreturn]] void refuse(const Path& path, std::string_view got, std::string_view expected);
[[noreturn]] void refuse(const Path& path, const Item& got, std::string_view expected);

int64_t read_int(const Item& j, const Path& path);
int read_id(const Item& j, const Path& path);  // -1 and up
bool read_bool(const Item& j, const Path& path);
std::string read_string(const Item& j, const Path& path);
double read_real(const Item& j, const Path& path);  // also "inf", "-inf", "nan"
DType read_dtype(const Item& j, const Path& path);
std::string read_hex(const Item& j, const Path& path);  // bytes
Arg read_arg(const Item& j, const Path& path);
NamedArg read_named_arg(const Item& j, const Path& path);
Nest read_nest(const Item& j, const Path& path);

// How the same are written.
std::string to_hex(const std::string& bytes);
Json write_arg(const Arg& arg);
Json write_nest(const Nest& nest);

template <class F>
auto read_list(const Item& j, const Path& path, F one) {
  if (!j.is_list()) refuse(path, j, "a list");
  std::vector<decltype(one(j, path))> out;
  out.reserve(j.size());
  Item item = j.first();
  for (size_t i = 0; i < j.size(); ++i, item = item.next()) out.push_back(one(item, Path(path, i)));
  return out;
}
template <class F>
auto list_reader(F one) {
  return [one](const Item& j, const Path& path) { return read_list(j, path, one); };
}
// Lists of pairs.
template <class F, class S>
auto pair_reader(F first, S second) {
  return list_reader([first, second](const Item& j, const Path& path) {
    if (!j.is_list() || j.size() != 2) refuse(path, j, "a pair");
    return std::pair{first(j.at(0), path), second(j.at(1), path)};
  });
}

// An object whose fields are taken one by one; `done` refuses what is left.
class Fields {
 public:
  Fields(const Item& j, const Path& path) : j_(j), path_(path) {
    if (!j.is_object()) refuse(path_, j, "an object");
  }
  template <class F>
  auto take(const char* key, F read) {
    const auto field = j_.find(key);
    if (!field) refuse(path_, j_, "a field '" + std::string(key) + "'");
    ++taken_;
    return read(*field, Path(path_, key));
  }
  bool has(const char* key) const { return j_.find(key).has_value(); }
  void done() {
    if (taken_ != j_.size()) refuse(path_, j_, std::to_string(taken_) + " fields");
  }

 private:
  const Item j_;
  const Path path_;
  size_t taken_ = 0;
};

// A text of a kind ("graph"), nested 64 levels at most.
JsonText parse_json(std::string_view text, std::string_view kind);

}  // namespace nns::graph
