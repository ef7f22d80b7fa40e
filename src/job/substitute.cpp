// $(a.b): the value of another key, or of an environment variable.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "job/resolve.h"

namespace nns::job {
namespace {

class Substitution {
 public:
  explicit Substitution(Value& root) : root_(root) {}

  void run(Value& value) {
    if (value.is(Value::Kind::text)) replace(value);
    for (Value& item : value.items) run(item);
    for (Field& f : value.fields) run(f.value);
  }

 private:
  Value* lookup(const std::string& path) {
    Value* at = &root_;
    for (const std::string& part : split_path(path)) {
      if (at->is(Value::Kind::list)) {
        size_t index = 0;
        const auto r = std::from_chars(part.data(), part.data() + part.size(), index);
        if (r.ec != std::errc() || index >= at->items.size()) return nullptr;
        at = &at->items[index];
      } else {
        at = at->find(part);
        if (at == nullptr) return nullptr;
      }
    }
    return at;
  }

  // The finished value of a path, for use at `mark`.
  Value value_of(const std::string& path, const Mark& mark) {
    Value* found = lookup(path);
    if (found == nullptr) {
      const char* variable = std::getenv(path.c_str());
      if (variable == nullptr)
        throw Error(ErrorKind::usage,
                    fmt::format("[job.substitute] {}: no key and no environment variable '{}'",
                                to_string(mark), path),
                    "write $\\( for the characters themselves");
      Value v = scalar(variable, mark);
      v.spelled = true;
      return v;
    }
    if (std::find(open_.begin(), open_.end(), path) != open_.end())
      fail(ErrorKind::usage, "[job.substitute] {}: $({}) refers to itself", to_string(mark), path);
    if (open_.size() >= kMostLevels)
      fail(ErrorKind::usage, "[job.substitute] {}: $({}) is reached through more than {} others",
           to_string(mark), path, kMostLevels);
    open_.push_back(path);
    run(*found);
    open_.pop_back();
    count(*found, mark);
    Value out = *found;
    out.mark = mark;
    return out;
  }

  // Texts of texts multiply as lists of lists do: each kBytes of a text count as one value.
  void count(const Value& value, const Mark& mark) {
    constexpr size_t kBytes = 64;
    values_ += 1 + value.text.size() / kBytes;
    check_count(values_, mark);
    for (const Value& item : value.items) count(item, mark);
    for (const Field& f : value.fields) count(f.value, mark);
  }

  void replace(Value& value) {
    const std::string& s = value.text;
    if (s.find("$(") == std::string::npos && s.find("$\\(") == std::string::npos) return;
    std::string out;
    size_t at = 0;
    while (at < s.size()) {
      if (s.compare(at, 3, "$\\(") == 0) {
        out += "$(";
        at += 3;
      } else if (s.compare(at, 2, "$(") == 0) {
        const size_t close = s.find(')', at);
        if (close == std::string::npos)
          fail(ErrorKind::usage, "[job.substitute] {}: '$(' without ')' in '{}'",
               to_string(value.mark), s);
        const std::string path = s.substr(at + 2, close - at - 2);
        Value part = value_of(path, value.mark);
        if (at == 0 && close + 1 == s.size()) {
          value = std::move(part);
          return;
        }
        using enum Value::Kind;
        if (part.is(map) || part.is(list) || part.is(opaque) || part.is(null))
          fail(ErrorKind::usage, "[job.substitute] {}: $({}) is {}; it has no place inside a text",
               to_string(value.mark), path, describe(part));
        out += part.text;
        at = close + 1;
      } else {
        out += s[at++];
      }
    }
    value.text = out;
  }

  Value& root_;
  std::vector<std::string> open_;  // whose values are being made
  size_t values_ = 0;              // that were put in place of a $(…)
};

}  // namespace

void substitute(Value& root) {
  Substitution(root).run(root);
}

}  // namespace nns::job
