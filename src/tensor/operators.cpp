// Reads the dispatcher's schemas once, by name.
#include "tensor/operators.h"

#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tensor/call.h"

namespace nns::tensor {
namespace {

Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::NumberType:
      return Kind::scalar;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Kind::integer;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return Kind::real;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return Kind::boolean;
    case c10::TypeKind::StringType:
      return Kind::string;
    case c10::TypeKind::ScalarTypeType:
      return Kind::dtype;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::LayoutType:
      return Kind::layout;
    case c10::TypeKind::MemoryFormatType:
      return Kind::memory_format;
    case c10::TypeKind::GeneratorType:
      return Kind::generator;
    default:
      return Kind::other;
  }
}

Want read_argument(const c10::Argument& argument) {
  Want want;
  want.name = argument.name();
  c10::TypePtr type = argument.real_type();
  const auto unwrap_optional = [&type](bool& flag) {
    if (type->kind() != c10::TypeKind::OptionalType) return;
    flag = true;
    type = type->castRaw<c10::OptionalType>()->getElementType();
  };
  unwrap_optional(want.optional);
  if (type->kind() == c10::TypeKind::ListType) {
    want.list = true;
    type = type->castRaw<c10::ListType>()->getElementType();
    unwrap_optional(want.optional_element);
  }
  want.kind = kind_of(*type);
  want.sized = argument.N().has_value();
  want.keyword_only = argument.kwarg_only();
  want.writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  want.has_default = argument.default_value().has_value();
  if (want.has_default) want.fallback = *argument.default_value();
  return want;
}

// Overloads that name dimensions, and those of the scripting frontend, are not offered by name.
bool is_hidden(const c10::OperatorHandle& op) {
  const std::string& overload = op.operator_name().overload_name;
  for (const char* part : {"imname", "names", "prim_", "hacked_twin"})
    if (overload.find(part) != std::string::npos) return true;
  return false;
}

int rank_of(const Overload& overload) {
  if (overload.out) return 2;
  return overload.op.operator_name().overload_name.empty() ? 0 : 1;
}

class Table {
 public:
  const Operator* find(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const std::string key(name);
    if (auto it = operators_.find(key); it != operators_.end()) return it->second.get();
    auto made = make(key);
    if (made == nullptr) return nullptr;
    return operators_.emplace(key, std::move(made)).first->second.get();
  }

 private:
  std::unique_ptr<Operator> make(const std::string& name) {
    auto result = std::make_unique<Operator>();
    result->name = name;
    auto& dispatcher = c10::Dispatcher::singleton();
    const size_t colons = name.find("::");
    if (colons == std::string::npos) return nullptr;
    if (const size_t dot = name.find('.', colons); dot != std::string::npos) {
      const std::string overload = name.substr(dot + 1);
      const auto handle =
          dispatcher.findSchema({name.substr(0, dot), overload == "default" ? "" : overload});
      if (!handle) return nullptr;
      result->overloads.emplace_back(*handle);
      return result;
    }
    auto it = by_name_.find(name);
    if (it == by_name_.end()) {  // registered since the last look, or unknown
      read_names();
      it = by_name_.find(name);
      if (it == by_name_.end()) return nullptr;
    }
    for (const auto& overload : it->second) {
      const auto handle = dispatcher.findSchema({name, overload});
      if (handle && !is_hidden(*handle)) result->overloads.emplace_back(*handle);
    }
    std::stable_sort(result->overloads.begin(), result->overloads.end(),
                     [](const Overload& a, const Overload& b) { return rank_of(a) < rank_of(b); });
    return result->overloads.empty() ? nullptr : std::move(result);
  }

  void read_names() {
    by_name_.clear();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      by_name_[name.name].push_back(name.overload_name);
    for (auto& [name, overloads] : by_name_) std::sort(overloads.begin(), overloads.end());
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::string>> by_name_;
  std::unordered_map<std::string, std::unique_ptr<Operator>> operators_;
};

}  // namespace

std::string Want::describe() const {
  static constexpr const char* one[] = {"a tensor",      "a number",
                                        "an integer",    "a number",
                                        "true or false", "a string",
                                        "a dtype name",  "a device name",
                                        "a layout name", "a memory format name",
                                        "a generator",   "a value that Lua cannot express"};
  static constexpr const char* many[] = {
      "tensors",    "numbers",     "integers",     "numbers",      "booleans",
      "strings",    "dtype names", "device names", "layout names", "memory format names",
      "generators", "values"};
  const auto at = static_cast<size_t>(kind);
  std::string text = list ? fmt::format("a list of {}", many[at]) : one[at];
  if (list && sized) text = fmt::format("{} or {}", one[at], text);
  return optional ? text + " or nil" : text;
}

Overload::Overload(c10::OperatorHandle handle) : op(handle), full_name(tensor::full_name(handle)) {
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    args.push_back(read_argument(argument));
    if (!argument.kwarg_only()) positional = args.size();
    out = out || (argument.kwarg_only() && args.back().writes);
  }
  for (const c10::Argument& result : schema.returns()) {
    int index = -1;
    if (result.alias_info() != nullptr && result.alias_info()->isWrite())
      for (size_t i = 0; i < args.size(); ++i) {
        const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && *alias == *result.alias_info()) index = static_cast<int>(i);
      }
    result_is_arg.push_back(index);
  }
  random = op.hasTag(at::Tag::nondeterministic_seeded);
}

const Want* Overload::find(std::string_view name, size_t* index) const {
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].name == name) {
      *index = i;
      return &args[i];
    }
  return nullptr;
}

const Operator* find_operator(std::string_view name) {
  static Table table;
  return table.find(name);
}

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace nns::tensor
