// `key.sub=value` and `key.sub!`.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "job/parse.h"

namespace nns::job {

Override parse_override(std::string_view text) {
  Override out;
  const size_t equal = text.find('=');
  std::string_view path = text.substr(0, equal);
  if (equal == std::string_view::npos && !text.empty() && text.back() == '!') {
    path = text.substr(0, text.size() - 1);
    out.remove = true;
  } else if (equal == std::string_view::npos) {
    throw Error(ErrorKind::usage, fmt::format("[job.override] '{}' sets nothing", text),
                "write key=value to set a key, key! to delete one");
  }
  const auto parts = split_path(path);
  if (std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.empty(); }))
    fail(ErrorKind::usage, "[job.override] '{}' has an empty name in its key", text);
  out.path = path;
  if (!out.remove)
    out.value =
        parse_expression(text.substr(equal + 1), {fmt::format("command line, {}", text), 0, 0});
  return out;
}

namespace {

// The list item that `part` names; one past the end is added when `add`.
Value& item_of(Value& list, const std::string& part, const std::string& path, bool add) {
  size_t index = 0;
  const auto [end, ec] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool number = ec == std::errc() && end == part.data() + part.size();
  if (number && add && index == list.items.size()) list.items.emplace_back();
  if (!number || index >= list.items.size())
    fail(ErrorKind::usage,
         "[job.override] command line, {}: no item '{}' in a list of {}; items "
         "count from 0",
         path, part, list.items.size());
  return list.items[index];
}

}  // namespace

void apply(const Override& change, Value& root) {
  const auto parts = split_path(change.path);
  Value* at = &root;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (at->mark.file.empty()) at->mark = change.value.mark;  // made for this change
    const std::string& part = parts[i];
    const bool last = i + 1 == parts.size();
    switch (at->kind) {
      case Value::Kind::list: {
        Value& item = item_of(*at, part, change.path, !change.remove);
        if (last && change.remove) {
          at->items.erase(at->items.begin() + (&item - at->items.data()));
          return;
        }
        at = &item;
        break;
      }
      case Value::Kind::null:
      case Value::Kind::map:
        if (change.remove && at->find(part) == nullptr) return;  // it is not there already
        if (last && change.remove) {
          at->erase(part);
          return;
        }
        at->ref = 0;  // no longer the table of the recipe
        at = &at->field(part);
        break;
      case Value::Kind::text:
        // `model: my.net` is short for `model: { type: my.net }`.
        if (!last || part != "type") {
          Value type = *at;
          *at = Value{};
          at->mark = type.mark;
          at->field("type") = std::move(type);
        }
        if (change.remove) {
          at->erase(part);
          return;
        }
        at = &at->field(part);
        break;
      default: {
        std::string whole = parts[0];
        for (size_t k = 1; k < i; ++k) whole += "." + parts[k];
        throw Error(
            ErrorKind::usage,
            fmt::format("[job.override] command line, {}: '{}' is {} (set at {}); it has no "
                        "'{}' to set",
                        change.path, whole, describe(*at), to_string(at->mark), part),
            "let the recipe declare a parameter for it: nnscaler.params");
      }
    }
  }
  *at = change.value;
}

}  // namespace nns::job
