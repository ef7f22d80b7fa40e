#include "trace/import/parts.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trace/import/archive.h"

namespace nns::trace::import {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 400;  // nesting of JSON: programs have about 10 a sub-graph

std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t start = text.find(before);
  if (start == std::string_view::npos) return {};
  const size_t from = start + before.size(), end = text.find(after, from);
  return end == std::string_view::npos ? std::string_view{} : text.substr(from, end - from);
}

std::string one_line(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  std::string out(text.substr(first, text.find('\n', first) - first));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// Elements of the storage that a view reaches, or nothing if that is more than can be counted.
std::optional<int64_t> extent(const Stored& stored) {
  int64_t last = stored.offset;
  for (size_t d = 0; d < stored.type.shape.size(); ++d) {
    if (stored.type.shape[d] == 0) return stored.offset;
    int64_t step = 0;
    if (__builtin_mul_overflow(stored.type.shape[d] - 1, stored.strides[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  if (last == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return last + 1;
}

Stored read_one(const Archive& archive, const std::string& folder, const std::string& name,
                const Json& meta) {
  const auto refuse = [&](std::string_view what, const char* hint = "") {
    archive.refuse(fmt::format("holds '{}' {}", name, what), hint);
  };
  if (!is_plain_name(name)) archive.refuse("holds a tensor whose name is no text");
  if (meta.at("use_pickle").get<bool>())
    refuse("as a pickle, which is never opened",
           "export the model with plain tensors as weights and constants");
  const Json& tensor = meta.at("tensor_meta");
  const auto dtype = dtype_of(tensor.at("dtype").get<int64_t>());
  if (!dtype) refuse(fmt::format("of dtype number {}", tensor.at("dtype").dump()));
  Stored out;
  out.name = name;
  out.record = folder + meta.at("path_name").get<std::string>();
  out.type.dtype = *dtype;
  const auto checked = [&](const Json& json) {
    const int64_t n = json.at("as_int").get<int64_t>();
    if (n < 0) refuse(fmt::format("with a size or stride of {}", n));
    return n;
  };
  for (const Json& size : tensor.at("sizes")) out.type.shape.push_back(checked(size));
  for (const Json& stride : tensor.at("strides")) out.strides.push_back(checked(stride));
  out.offset = checked(tensor.at("storage_offset"));
  out.requires_grad = tensor.at("requires_grad").get<bool>();
  if (out.strides.size() != out.type.shape.size()) refuse("with sizes and strides that differ");
  const auto elements = extent(out);
  const auto held = static_cast<int64_t>(archive.size(out.record)) / size_of(*dtype);
  // A stride of 0 shows one element many times: no more than there are bytes.
  int64_t count = 1;
  bool fits = elements && *elements <= held;
  for (const int64_t n : out.type.shape) fits = fits && !__builtin_mul_overflow(count, n, &count);
  if (!fits || count > held)
    refuse(fmt::format("as {} at {} with strides {}, of which record '{}' has {} elements",
                       to_string(out.type), out.offset, to_string(out.strides), out.record, held));
  return out;
}

void read_config(const Archive& archive, const std::string& config, const std::string& folder,
                 std::vector<Stored>& out) {
  if (!archive.has(config)) return;
  const Json json = parse_json(archive, config, archive.read(config));
  try {
    for (const auto& [name, meta] : json.at("config").items())
      out.push_back(read_one(archive, folder, name, meta));
  } catch (const Json::exception& e) {
    archive.refuse(fmt::format("is damaged: {}: {}", config, e.what()));
  }
}

Tree tree_of(const Json& node,
             const std::map<std::string, std::vector<std::string>>& named_tuples) {
  Tree tree;
  if (node.at("type").is_null()) return tree;
  const auto type = node.at("type").get<std::string>();
  for (const Json& child : node.at("children_spec"))
    tree.children.push_back(tree_of(child, named_tuples));
  if (type == "builtins.NoneType") {
    tree.kind = Tree::Kind::nothing;
    return tree;
  }
  tree.kind = Tree::Kind::list;
  const auto text = node.at("context").get<std::string>();  // a named tuple's own name, else JSON
  const Json context = Json::parse(text, nullptr, false);
  const auto fields = named_tuples.find(text);
  if (fields != named_tuples.end()) {
    tree.keys = fields->second;
  } else if (context.is_array()) {
    for (const Json& key : context)
      if (key.is_string()) tree.keys.push_back(key.get<std::string>());
  } else if (context.is_object() && context.contains("keys")) {
    for (const Json& key : context.at("keys")) tree.keys.push_back(key.get<std::string>());
  }
  const bool named = tree.keys.size() == tree.children.size() &&
                     std::all_of(tree.keys.begin(), tree.keys.end(), is_plain_name);
  if (named && (!tree.keys.empty() || type == "builtins.dict"))
    tree.kind = Tree::Kind::table;
  else
    tree.keys.clear();
  return tree;
}

}  // namespace

Json parse_json(const Archive& archive, std::string_view what, std::string_view text) {
  try {
    return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kDeepest) fail(ErrorKind::state, "nested more than {} deep", kDeepest);
      return true;
    });
  } catch (const std::exception& e) {
    archive.refuse(fmt::format("is damaged: {} is no JSON: {}", what, e.what()));
  }
}

std::optional<DType> dtype_of(int64_t code) {
  switch (code) {
    case 1:
      return DType::u8;
    case 2:
      return DType::i8;
    case 3:
      return DType::i16;
    case 4:
      return DType::i32;
    case 5:
      return DType::i64;
    case 6:
      return DType::f16;
    case 7:
      return DType::f32;
    case 8:
      return DType::f64;
    case 10:
      return DType::c64;
    case 11:
      return DType::c128;
    case 12:
      return DType::boolean;
    case 13:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

bool is_plain_name(std::string_view name) {
  const Json text = std::string(name);
  try {
    (void)text.dump();  // throws for what is not UTF-8
  } catch (const Json::exception&) {
    return false;
  }
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
}

std::vector<Stored> read_stored(const Archive& archive) {
  std::vector<Stored> out;
  read_config(archive, "data/weights/model_weights_config.json", "data/weights/", out);
  read_config(archive, "data/constants/model_constants_config.json", "data/constants/", out);
  std::sort(out.begin(), out.end(),
            [](const Stored& a, const Stored& b) { return a.name < b.name; });
  for (size_t i = 1; i < out.size(); ++i)
    if (out[i].name == out[i - 1].name)
      archive.refuse(fmt::format("holds two tensors named '{}'", out[i].name));
  return out;
}

Tree read_tree(const Archive& archive, const std::string& spec,
               const std::map<std::string, std::vector<std::string>>& named_tuples) {
  const Json json = parse_json(archive, "the shape of arguments or results", spec);
  try {
    if (json.at(0).get<int64_t>() != 1)
      archive.refuse(fmt::format("has a tree of version {}; expected 1", json.at(0).dump()));
    return tree_of(json.at(1), named_tuples);
  } catch (const Json::exception& e) {
    archive.refuse(fmt::format("is damaged: the shape of arguments or results: {}", e.what()));
  }
}

size_t count_leaves(const Tree& tree) {
  if (tree.kind == Tree::Kind::leaf) return 1;
  size_t n = 0;
  for (const Tree& child : tree.children) n += count_leaves(child);
  return n;
}

void read_place(std::string_view trace, Origin& origin) {
  // Frames stand outermost first: `File "x.py", line 3, in forward`, and the line below.
  size_t best = std::string_view::npos;
  bool own = false;
  for (size_t at = trace.find("File \""); at != std::string_view::npos;
       at = trace.find("File \"", at + 1)) {
    const std::string_view file = between(trace.substr(at), "File \"", "\"");
    if (file.starts_with('<')) continue;  // code that export has made
    const bool torch = file.find("/site-packages/torch/") != std::string_view::npos;
    if (best != std::string_view::npos && torch && own) continue;
    best = at;
    own = !torch;
  }
  if (best == std::string_view::npos) return;
  const std::string_view frame = trace.substr(best);
  origin.loc.file = one_line(between(frame, "File \"", "\""));
  const std::string_view number = between(frame, ", line ", ",");
  if (std::from_chars(number.data(), number.data() + number.size(), origin.loc.line).ec !=
      std::errc())
    origin.loc.line = 0;
  if (const size_t end = frame.find('\n'); end != std::string_view::npos)
    origin.text = one_line(frame.substr(end + 1));
}

std::string read_module(std::string_view stack) {
  const std::string_view last = stack.substr(stack.rfind(';') + 1);
  std::string path(between(last, ",", ","));
  if (const size_t call = path.rfind('@'); call != std::string::npos) path.resize(call);
  return is_plain_name(path) ? path : "";
}

std::string describe(const Origin& origin) {
  std::string out = origin.module.empty() ? "" : fmt::format("in module '{}' ", origin.module);
  out +=
      origin.loc.file.empty() ? "at an unknown line" : fmt::format("at {}", short_form(origin.loc));
  return origin.text.empty() ? out : fmt::format("{}: `{}`", out, origin.text);
}

}  // namespace nns::trace::import
