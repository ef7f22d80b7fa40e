// Checks a job against the schema and completes it.
#include "job/resolve.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "job/parse.h"
#include "job/schema.h"

namespace nns::job {
namespace {

using enum Value::Kind;

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

bool is_component(const Key& key) {
  return key.type == Type::component || key.type == Type::hooks;
}

bool holds_components(const Key& key) {
  return key.type == Type::components || key.type == Type::hooks;
}

// Marks the table that holds a thing which stands in a component's place.
constexpr int kWrapped = -1;

[[noreturn]] void unknown(const Mark& mark, const std::string& path, const std::string& parent,
                          const std::vector<std::string>& parameters) {
  std::vector<std::string> names;
  for (const Key* sibling : children(parent)) names.emplace_back(sibling->path);
  if (parent.empty()) names.insert(names.end(), parameters.begin(), parameters.end());
  std::string near = nearest(path, names);
  if (near.empty()) {
    names = all_paths();
    near = nearest(parent.empty() ? path : path.substr(parent.size() + 1), names);
  }
  throw Error(ErrorKind::usage,
              fmt::format("[job.key] {}: unknown key '{}'", to_string(mark), path),
              near.empty() ? "docs/configuration.md lists all keys"
                           : fmt::format("did you mean '{}'?", near));
}

std::string mismatch(const Value& value, const Key& key, const std::string& expected) {
  return fmt::format("[job.type] {}: '{}' is {}; expected {}", to_string(value.mark), key.path,
                     describe(value), expected);
}
[[noreturn]] void mistyped(const Value& value, const Key& key, const std::string& expected) {
  throw Error(ErrorKind::usage, mismatch(value, key, expected));
}

// Whether a plain table of a recipe is the thing itself (a data set with get and len, say), not its
// description.
bool is_object(const Value& value) {
  if (!value.is(map) || value.ref == 0 || value.find("type") != nullptr) return false;
  return std::any_of(value.fields.begin(), value.fields.end(),
                     [](const Field& f) { return f.value.is(opaque) && f.value.callable; });
}

// What a number has to be; the greatest one is said to who went beyond it.
std::string expected(double x, const Key& key) {
  const char* article = key.type == Type::integer ? "an" : "a";
  if (!(x > key.maximum)) return fmt::format("{} {}", article, type_text(key));
  return fmt::format("{} {} from {} to {}", article,
                     key.type == Type::integer ? "integer" : "number", number_text(key.minimum),
                     key.maximum == kExact ? "2^53 - 1" : number_text(key.maximum));
}

bool in_range(double x, const Key& key) {
  const bool right = key.type == Type::number || std::floor(x) == x;
  return right && x >= key.minimum && x <= key.maximum;
}

class Resolver {
 public:
  Resolver(Value& root, const std::vector<std::string>& parameters)
      : root_(root), parameters_(parameters) {}

  void run() {
    shape(root_, "");
    fill(root_, "");
    substitute(root_);
    check(root_, "");
    rules();
    for (Field& f : root_.fields) unwrap(f.value);
  }

 private:
  // A thing that stood in a component's place stands there again.
  static void unwrap(Value& component) {
    if (Value* thing = component.ref == kWrapped ? component.find("value") : nullptr) {
      Value out = std::move(*thing);
      component = std::move(out);
      component.whole = true;
    }
    for (Value& item : component.items) unwrap(item);
  }

  // Brings components into one form and finds unknown keys.
  void shape(Value& table, const std::string& path) {
    std::erase_if(table.fields, [](const Field& f) { return f.value.is(null); });
    for (Field& f : table.fields) {
      const std::string full = join(path, f.key);
      const Key* key = find_key(full);
      if (key == nullptr) unknown(f.value.mark, full, path, parameters_);
      if (key->type == Type::group) {
        if (!f.value.is(map)) mistyped(f.value, *key, "a table");
        shape(f.value, full);
      } else if (key->type != Type::component && f.value.is(list) && holds_components(*key)) {
        for (Value& item : f.value.items) component(item, *key);
      } else if (is_component(*key)) {
        component(f.value, *key);
      }
    }
  }

  void component(Value& value, const Key& key) {
    const bool by_name = key.type == Type::hooks && value.is(map) && value.find("type") == nullptr;
    if (value.is(opaque) || by_name || is_object(value)) {
      Value thing = std::move(value);
      value = Value{};
      value.mark = thing.mark;
      value.ref = kWrapped;
      value.field("value") = std::move(thing);
    } else if (value.is(text)) {
      Value type = std::move(value);
      value = Value{};
      value.mark = type.mark;
      value.field("type") = std::move(type);
    } else if (!value.is(map)) {
      mistyped(value, key, "{ type, args }, the name of a module or, in Lua, the thing itself");
    } else {
      const std::string path = key.path;
      const Key* type = find_key(path + ".type");
      if (value.find("type") == nullptr && std::string_view(type->fallback) == kRequired)
        throw Error(ErrorKind::usage,
                    fmt::format("[job.key] {}: '{}' has no type", to_string(value.mark), path),
                    fmt::format("{}.type: {}", path, type->help));
      shape(value, path);
    }
  }

  // Adds the defaults of keys that are not given.
  void fill(Value& table, const std::string& path) {
    for (const Key* key : children(path)) {
      const std::string name = std::string(key->path).substr(path.empty() ? 0 : path.size() + 1);
      Value* found = table.find(name);
      if (key->type == Type::group) {
        Value& below = table.field(name);
        if (below.is(null)) below.kind = map;
        fill(below, key->path);
      } else if (found != nullptr) {
        if (is_component(*key) && found->ref != kWrapped) fill(*found, key->path);
      } else if (std::string_view(key->fallback) == kRequired) {
        if (path.empty())
          throw Error(
              ErrorKind::usage,
              fmt::format("[job.key] {}: '{}' is missing", to_string(table.mark), key->path),
              is_component(*key) ? fmt::format("add {} with a type: {}", key->path,
                                               find_key(fmt::format("{}.type", key->path))->help)
                                 : key->help);
      } else if (*key->fallback != '\0') {
        table.field(name) = parse_expression(key->fallback, {"default", 0, 0});
      }
    }
  }

  void check(Value& table, const std::string& path) {
    for (Field& f : table.fields) {
      const Key* key = find_key(join(path, f.key));
      check_type(f.value, *key);
      if (holds_components(*key))
        for (Value& item : f.value.items)
          if (item.ref != kWrapped) check(item, key->path);
      if ((key->type == Type::group || is_component(*key)) && f.value.ref != kWrapped)
        check(f.value, key->path);
    }
  }

  static void check_choice(const Value& value, const Key& key) {
    std::vector<std::string> choices;
    std::istringstream words(key.choices);
    for (std::string word; words >> word;) choices.push_back(word);
    if (value.is(text) && std::find(choices.begin(), choices.end(), value.text) != choices.end())
      return;
    const std::string near = value.is(text) ? nearest(value.text, choices) : "";
    throw Error(ErrorKind::usage, mismatch(value, key, "one of " + type_text(key)),
                near.empty() ? "" : fmt::format("did you mean '{}'?", near));
  }

  static void check_type(Value& value, const Key& key) {
    const bool is_type = std::string_view(key.path).ends_with(".type");
    switch (key.type) {
      case Type::boolean:
        if (!value.is(boolean)) mistyped(value, key, "true or false");
        break;
      case Type::integer:
      case Type::number:
        if (value.is(boolean) && *key.choices != '\0')  // "false true": 0 and 1
          value = Value::of_number(value.boolean ? 1 : 0, value.mark);
        if (!value.is(number) || !in_range(value.number, key))
          mistyped(value, key, expected(value.number, key));
        break;
      case Type::text:
        if (is_type && value.is(opaque)) break;
        if (value.spelled && (value.is(number) || value.is(boolean)))
          value = Value::of_text(value.text, value.mark);
        if (!value.is(text) || value.text.empty()) mistyped(value, key, "a text");
        break;
      case Type::words:
        if (value.is(map)) break;
        check_choice(value, key);
        break;
      case Type::choice:
        check_choice(value, key);
        break;
      case Type::names:
        if (value.is(list) ? !std::all_of(value.items.begin(), value.items.end(),
                                          [](const Value& v) { return v.is(text); })
                           : !value.is(text))
          mistyped(value, key, "a text or a list of texts");
        break;
      case Type::map:
        if (!value.is(map) && !value.is(list) && !value.is(opaque)) mistyped(value, key, "a table");
        break;
      case Type::function:
        if (!value.is(opaque) && !value.is(text))
          mistyped(value, key, "a function, or its module and name");
        break;
      case Type::components:
        if (!value.is(list)) mistyped(value, key, "a list of components");
        break;
      case Type::component:
      case Type::hooks:
      case Type::group:
        break;  // done in shape
    }
  }

  // --- rules over several keys

  const Value* at(std::string_view path) const {
    const Value* v = &root_;
    for (const std::string& part : split_path(path)) {
      v = v->find(part);
      if (v == nullptr) return nullptr;
    }
    return v;
  }

  // Keys of other systems that mean nothing here: what they say has to be what is the case anyway.
  void neutral() const {
    struct Neutral {
      const char* path;
      Value value;
      const char* reason;
    };
    const Neutral list[] = {
        {"compute_config.use_end2end", Value::of_boolean(true, {}),
         "a job trains the whole model; model.parallel_modules makes parts of it parallel"},
        {"compute_config.inference_only", Value::of_boolean(false, {}),
         "a job trains; nnscaler.parallelize makes modules without backward"},
        {"compute_config.constant_folding", Value::of_boolean(false, {}),
         "numbers of Lua are constants of the program already, and tensors never are"},
        {"compute_config.trace_strategy", Value::of_text("cuda_run_cpu_offload", {}),
         "tracing runs no operator, so it has no strategy"},
    };
    for (const Neutral& n : list) {
      const Value* given = at(n.path);
      if (given == nullptr || describe(*given) == describe(n.value)) continue;
      throw Error(
          ErrorKind::usage,
          fmt::format("[job.neutral] {}: '{}' is {}; only {} is taken: {}", to_string(given->mark),
                      n.path, describe(*given), describe(n.value), n.reason),
          "leave it out");
    }
  }

  // Two names of one thing have to say the same.
  void weights_of() {
    const Value* other = at("tracing_from_weights");
    if (other == nullptr) return;
    const Value* init = at("checkpoint.init_from");
    if (init != nullptr && init->text != other->text)
      throw Error(ErrorKind::usage,
                  fmt::format("[job.weights] {}: tracing_from_weights is '{}', "
                              "checkpoint.init_from is '{}'; expected one of them",
                              to_string(other->mark), other->text, init->text),
                  "both name the weights that training starts with");
    const Value weights = *other;
    root_.field("checkpoint").field("init_from") = weights;
  }

  void rules() {
    neutral();
    weights_of();
    if (at("max_epochs") == nullptr && at("max_train_steps") == nullptr)
      throw Error(ErrorKind::usage,
                  fmt::format("[job.end] {}: the job has no end", to_string(root_.mark)),
                  "give max_train_steps or max_epochs");
    Value& checkpoint = root_.field("checkpoint");
    const Value* steps = checkpoint.find("every_n_train_steps");
    const Value* epochs = checkpoint.find("every_n_epochs");
    if (steps != nullptr && epochs != nullptr)
      fail(ErrorKind::usage,
           "[job.checkpoint] {}: checkpoint.every_n_train_steps and checkpoint.every_n_epochs "
           "exclude each other",
           to_string(steps->mark));
    if (steps == nullptr && epochs == nullptr)
      checkpoint.field("every_n_epochs") = Value::of_number(1, {"default", 0, 0});
  }

  Value& root_;
  const std::vector<std::string>& parameters_;
};

void dump_into(const Value& value, int depth, std::string& out) {
  const std::string indent(static_cast<size_t>(depth) * 2, ' ');
  switch (value.kind) {
    case null:
      out += " null\n";
      break;
    case boolean:
      out += value.boolean ? " true\n" : " false\n";
      break;
    case number:
      out += fmt::format(" {}\n", number_text(value.number));
      break;
    case opaque:
      out += fmt::format(" !lua {}\n", value.text);
      break;
    case text: {
      const bool plain = scalar(value.text).is(text) && !value.text.empty() &&
                         value.text.find_first_of(":#\n'\"[]{},&*!|>%@`") == std::string::npos &&
                         value.text.front() != ' ' && value.text.front() != '-' &&
                         value.text.back() != ' ';
      std::string quoted;
      for (const char c : value.text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
      out += plain ? fmt::format(" {}\n", value.text) : fmt::format(" '{}'\n", quoted);
      break;
    }
    case list:
      out += value.items.empty() ? " []\n" : "\n";
      for (const Value& item : value.items) {
        out += indent + "-";
        dump_into(item, depth + 1, out);
      }
      break;
    case map:
      out += value.fields.empty() ? " {}\n" : "\n";
      for (const Field& f : value.fields) {
        out += indent + f.key + ":";
        dump_into(f.value, depth + 1, out);
      }
      break;
  }
}

}  // namespace

void resolve(Value& root, const std::vector<std::string>& parameters) {
  Resolver(root, parameters).run();
}

std::string dump(const Value& root) {
  std::string out;
  dump_into(root, 0, out);
  return out.substr(out.empty() || out[0] != '\n' ? 0 : 1);
}

}  // namespace nns::job
