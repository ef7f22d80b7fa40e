// tokenizer.json, which may have been written by an enemy, as a ByteLevel tokenizer.
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/byte_level.h"

namespace nns::tokenizer {
namespace {

using nlohmann::json;

// GPT-2's split, which a ByteLevel step with `use_regex` means.
constexpr const char* kWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::data, fmt::format("[tokenizer.read] '{}': {}", path_,
                                             fmt::format(format, std::forward<Args>(args)...)));
  }

  const json& object(const json& j, const std::string& what) const {
    if (!j.is_object()) refuse("{} is {}; expected an object", what, j.type_name());
    return j;
  }
  const json& list(const json& j, const char* key) const {
    const auto found = j.find(key);
    if (found == j.end() || !found->is_array())
      refuse("{} is {}; expected a list", key, found == j.end() ? "missing" : found->type_name());
    return *found;
  }
  std::string text(const json& j, const char* key) const {
    const auto found = j.find(key);
    if (found == j.end() || !found->is_string())
      refuse("{} is {}; expected a text", key, found == j.end() ? "missing" : found->type_name());
    return found->get<std::string>();
  }
  bool flag(const json& j, const char* key, bool fallback) const {
    const auto found = j.find(key);
    if (found == j.end() || found->is_null()) return fallback;
    if (!found->is_boolean()) refuse("{} is {}; expected true or false", key, found->type_name());
    return found->get<bool>();
  }
  int32_t id(const json& j, const std::string& token) const {
    const bool whole = j.is_number_unsigned();
    if (!whole || j.get<uint64_t>() > std::numeric_limits<int32_t>::max() - 1)
      refuse("the id of '{}' is {}; expected an integer from 0 to 2^31 - 2", token,
             j.is_number() ? j.dump() : j.type_name());
    return j.get<int32_t>();
  }
  const std::string& path() const { return path_; }

 private:
  const std::string& path_;
};

// The kinds in a Sequence (under `members`), or the one thing itself; none for null.
std::vector<const json*> parts_of(const Reader& r, const json& file, const char* key,
                                  const char* members) {
  const auto found = file.find(key);
  if (found == file.end() || found->is_null()) return {};
  r.object(*found, key);
  if (r.text(*found, "type") != "Sequence") return {&*found};
  std::vector<const json*> out;
  for (const json& part : r.list(*found, members)) {
    out.push_back(&r.object(part, key));
    if (r.text(part, "type") == "Sequence") r.refuse("a Sequence in the Sequence of {}", key);
  }
  return out;
}

void read_normalizer(const Reader& r, const json& file, ByteLevel& out) {
  for (const json* part : parts_of(r, file, "normalizer", "normalizers")) {
    const std::string type = r.text(*part, "type");
    if (type == "NFC")
      out.forms.push_back(Form::nfc);
    else if (type == "NFD")
      out.forms.push_back(Form::nfd);
    else if (type == "NFKC")
      out.forms.push_back(Form::nfkc);
    else if (type == "NFKD")
      out.forms.push_back(Form::nfkd);
    else
      r.refuse("the normalizer '{}' is not here; expected NFC, NFD, NFKC or NFKD", type);
  }
}

Pattern read_pattern(const Reader& r, const json& step) {
  const auto found = step.find("pattern");
  if (found == step.end() || !found->is_object()) r.refuse("a Split without a pattern");
  if (found->contains("Regex")) return Pattern(r.text(*found, "Regex"), r.path());
  return Pattern::literal(r.text(*found, "String"), r.path());
}

void read_split(const Reader& r, const json& part, ByteLevel& out) {
  Step step;
  step.pattern.push_back(read_pattern(r, part));
  const std::string behavior = r.text(part, "behavior");
  if (behavior == "Removed")
    (r.flag(part, "invert", false) ? step.drop_gaps : step.drop_matches) = true;
  else if (behavior != "Isolated")
    r.refuse("the behavior '{}' of a Split is not here; expected Isolated or Removed", behavior);
  out.steps.push_back(std::move(step));
}

void read_steps(const Reader& r, const json& file, ByteLevel& out) {
  const auto parts = parts_of(r, file, "pre_tokenizer", "pretokenizers");
  bool bytes = false;
  for (const json* part : parts) {
    const std::string type = r.text(*part, "type");
    if (bytes) r.refuse("the pre-tokenizer '{}' stands behind ByteLevel; expected it last", type);
    if (type == "Split") {
      read_split(r, *part, out);
    } else if (type == "Digits") {
      const bool each = r.flag(*part, "individual_digits", false);
      Step step;
      step.pattern.emplace_back(each ? "\\p{N}" : "\\p{N}+", r.path());
      out.steps.push_back(std::move(step));
    } else if (type == "ByteLevel") {
      bytes = true;
      if (r.flag(*part, "add_prefix_space", true)) {
        Step step;
        step.kind = Step::Kind::prefix;
        out.steps.push_back(std::move(step));
      }
      if (!r.flag(*part, "use_regex", true)) continue;
      Step step;
      step.pattern.emplace_back(kWords, r.path());
      out.steps.push_back(std::move(step));
    } else {
      r.refuse("the pre-tokenizer '{}' is not here; expected Split, Digits or ByteLevel", type);
    }
  }
  if (!bytes)
    throw Error(ErrorKind::data,
                fmt::format("[tokenizer.read] '{}': the pre-tokenizer is not byte-level", r.path()),
                "give the SentencePiece .model of that tokenizer, where there is one");
}

void check_model(const Reader& r, const json& model) {
  const std::string type = r.text(model, "type");
  if (type != "BPE") r.refuse("the model is '{}'; expected BPE", type);
  if (r.flag(model, "byte_fallback", false)) r.refuse("byte_fallback of a byte-level BPE");
  const auto has = [&](const char* key) {
    const auto found = model.find(key);
    return found != model.end() && !found->is_null() && *found != "" && *found != 0;
  };
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (has(key)) r.refuse("{} of the model is not here; expected null", key);
}

void read_vocabulary(const Reader& r, const json& model, ByteLevel& out) {
  const auto vocabulary = model.find("vocab");
  if (vocabulary == model.end() || !vocabulary->is_object())
    r.refuse("vocab of the model is missing; expected an object");
  std::string bytes;
  for (const auto& [token, number] : vocabulary->items()) {
    const int32_t id = r.id(number, token);
    if (!out.bytes.emplace(id, bytes_of_token(token, bytes) ? bytes : token).second)
      r.refuse("the id {} stands for '{}' and for another token", id, token);
    out.names.emplace(token, id);
    out.ids = std::max<int64_t>(out.ids, id + int64_t{1});
  }
  for (size_t b = 0; b < 256; ++b) {
    std::string token;
    const char32_t c = byte_characters()[b];
    if (c >= 0x80) token += static_cast<char>(0xC0 | c >> 6);
    token += static_cast<char>(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    const auto found = out.names.find(token);
    out.bpe.byte_ids[b] = found == out.names.end() ? -1 : found->second;
    const bool in_utf8 = b != 0xC0 && b != 0xC1 && b < 0xF5;
    if (found == out.names.end() && in_utf8)
      r.refuse("the vocabulary lacks the token of byte 0x{:02x} ('{}')", b, token);
  }
  if (!r.flag(model, "ignore_merges", false)) return;
  for (const auto& [token, id] : out.names)
    if (bytes_of_token(token, bytes)) out.bpe.whole_words.emplace(bytes, id);
}

// "a b", or ["a", "b"].
std::pair<std::string, std::string> pair_of(const Reader& r, const json& merge, size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    r.refuse("merge {} is {}; expected two tokens", rank,
             merge.is_string() ? "'" + text.substr(0, 80) + "'" : merge.type_name());
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Reader& r, const json& model, ByteLevel& out) {
  int32_t rank = 0;
  for (const json& merge : r.list(model, "merges")) {
    const auto pair = pair_of(r, merge, static_cast<size_t>(rank));
    const std::string &left = pair.first, &right = pair.second;
    const auto id = [&](const std::string& token) {
      const auto found = out.names.find(token);
      if (found == out.names.end())
        r.refuse("merge {} ('{}' with '{}') needs the token '{}', which the vocabulary lacks", rank,
                 left, right, token);
      return found->second;
    };
    const int32_t a = id(left), b = id(right);
    out.bpe.merges[Bpe::pair_key(a, b)] = {rank, id(left + right)};
    ++rank;
  }
}

void read_added(const Reader& r, const json& file, ByteLevel& out) {
  const auto found = file.find("added_tokens");
  if (found == file.end() || found->is_null()) return;
  for (const json& j : r.list(file, "added_tokens")) {
    r.object(j, "an item of added_tokens");
    AddedToken token;
    token.content = r.text(j, "content");
    const auto id = j.find("id");
    if (id == j.end()) r.refuse("the added token '{}' has no id", token.content);
    token.id = r.id(*id, token.content);
    token.single_word = r.flag(j, "single_word", false);
    token.left = r.flag(j, "lstrip", false);
    token.right = r.flag(j, "rstrip", false);
    token.special = r.flag(j, "special", false);
    token.normalized = r.flag(j, "normalized", !token.special);
    const auto [place, fresh] = out.names.emplace(token.content, token.id);
    if (!fresh && place->second != token.id)
      r.refuse("the added token '{}' has the id {}, in the vocabulary {}", token.content, token.id,
               place->second);
    out.ids = std::max<int64_t>(out.ids, token.id + int64_t{1});
    if (token.normalized)
      for (const Form form : out.forms) token.content = normalize(token.content, form);
    if (token.content.empty()) r.refuse("an added token is empty");
    out.bytes[token.id] = token.special ? "" : token.content;
    (token.normalized ? out.normalized : out.raw).add(std::move(token));
  }
}

// Ids of a special token of a TemplateProcessing.
std::vector<int32_t> template_ids(const Reader& r, const json& part, const std::string& name) {
  const auto all = part.find("special_tokens");
  const auto token =
      all != part.end() && all->is_object() ? all->find(name) : json::const_iterator{};
  if (all == part.end() || !all->is_object() || token == all->end() || !token->is_object())
    r.refuse("the template of the post-processor names '{}', which its special_tokens lack", name);
  std::vector<int32_t> out;
  for (const json& id : r.list(*token, "ids")) out.push_back(r.id(id, name));
  return out;
}

void read_template(const Reader& r, const json& part, ByteLevel& out) {
  bool text = false;
  for (const json& item : r.list(part, "single")) {
    r.object(item, "an item of the template");
    if (item.contains("Sequence")) {
      if (text) r.refuse("the template of the post-processor holds the text twice");
      text = true;
    } else if (item.contains("SpecialToken") && item["SpecialToken"].is_object()) {
      auto& side = text ? out.after : out.before;
      for (const int32_t id : template_ids(r, part, r.text(item["SpecialToken"], "id")))
        side.push_back(id);
    } else {
      r.refuse("an item of the template is neither Sequence nor SpecialToken");
    }
  }
  if (!text) r.refuse("the template of the post-processor holds no text");
}

void read_processor(const Reader& r, const json& file, ByteLevel& out) {
  for (const json* part : parts_of(r, file, "post_processor", "processors")) {
    const std::string type = r.text(*part, "type");
    if (type == "TemplateProcessing")
      read_template(r, *part, out);
    else if (type != "ByteLevel")
      r.refuse("the post-processor '{}' is not here; expected TemplateProcessing or ByteLevel",
               type);
  }
  for (const auto* side : {&out.before, &out.after})
    for (const int32_t id : *side)
      if (out.bytes.find(id) == out.bytes.end())
        r.refuse("the post-processor adds the id {}, which no token has", id);
}

}  // namespace

std::shared_ptr<const Tokenizer> read_json(std::string_view text, const std::string& path) {
  const Reader r(path);
  json file;
  try {
    file = json::parse(text);
  } catch (const json::exception& e) {
    r.refuse("it is not JSON: {}", e.what());
  }
  r.object(file, "it");
  auto out = std::make_shared<ByteLevel>();
  const auto model = file.find("model");
  if (model == file.end()) r.refuse("model is missing; expected an object");
  check_model(r, r.object(*model, "model"));
  read_normalizer(r, file, *out);
  read_steps(r, file, *out);
  read_vocabulary(r, *model, *out);
  read_merges(r, *model, *out);
  read_added(r, file, *out);
  read_processor(r, file, *out);
  return out;
}

}  // namespace nns::tokenizer
