// Typed access to the arguments of a call.
#include "operators/call_view.h"

#include <algorithm>

#include "base/error.h"
#include "operators/schema.h"

namespace nns::operators {
namespace {

using graph::ValueRef;

bool is_nil(const Arg* arg) {
  if (arg == nullptr || std::holds_alternative<std::monostate>(*arg)) return true;
  const auto* ref = std::get_if<ValueRef>(arg);
  return ref != nullptr && ref->id < 0;
}

[[noreturn]] void wrong(const CallView& call, std::string_view name, std::string_view expected) {
  call.fail(fmt::format("argument '{}' {}; expected {}", name,
                        call.has(name) ? "is of another kind" : "is missing", expected));
}

int64_t wrap(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
}

}  // namespace

std::string_view base_of(std::string_view op) {
  const size_t colons = op.find("::");
  return op.substr(0, op.find('.', colons == std::string_view::npos ? 0 : colons));
}

CallView::CallView(std::string_view op, const std::vector<NamedArg>& args, TypeOf type_of)
    : op_(op), args_(&args), type_of_(std::move(type_of)) {}

CallView::CallView(const graph::Graph& graph, const graph::Node& node)
    : CallView(node.op, node.args, [&graph](int id) -> const TensorType& {
        return graph.values.at(static_cast<size_t>(id)).type;
      }) {}

int64_t CallView::rank(std::string_view name) const {
  return static_cast<int64_t>(tensor(name).shape.size());
}

const Arg* CallView::find(std::string_view name) const {
  for (const NamedArg& arg : *args_)
    if (arg.name == name) return &arg.value;
  return nullptr;
}

const Arg& CallView::arg(std::string_view name) const {
  static const Arg nil;
  const Arg* given = find(name);
  return given == nullptr ? nil : *given;
}

bool CallView::has(std::string_view name) const {
  return !is_nil(find(name));
}

bool CallView::is_tensor(std::string_view name) const {
  return has(name) && std::holds_alternative<ValueRef>(arg(name));
}

Ref CallView::in(std::string_view name) const {
  if (!has(name)) return {};
  if (!is_tensor(name)) wrong(*this, name, "a tensor");
  return std::get<ValueRef>(arg(name));
}

std::vector<Ref> CallView::list(std::string_view name) const {
  if (!has(name)) return {};
  if (is_tensor(name)) return {in(name)};
  if (const auto* refs = std::get_if<std::vector<ValueRef>>(&arg(name))) return *refs;
  if (const auto* none = std::get_if<std::vector<int64_t>>(&arg(name)); none && none->empty())
    return {};
  wrong(*this, name, "a list of tensors");
}

const TensorType* CallView::maybe_tensor(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return nullptr;
  const auto* ref = std::get_if<ValueRef>(arg);
  return ref == nullptr ? nullptr : &type_of_(ref->id);
}

const TensorType& CallView::tensor(std::string_view name) const {
  const TensorType* type = maybe_tensor(name);
  if (type == nullptr) wrong(*this, name, "a tensor");
  return *type;
}

std::vector<const TensorType*> CallView::tensors(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  std::vector<const TensorType*> out;
  if (const auto* list = std::get_if<std::vector<ValueRef>>(arg)) {
    for (const ValueRef ref : *list) out.push_back(ref.id < 0 ? nullptr : &type_of_(ref.id));
  } else if (const auto* empty = std::get_if<std::vector<int64_t>>(arg);
             empty == nullptr || !empty->empty()) {
    wrong(*this, name, "a list of tensors");
  }
  return out;
}

std::optional<int64_t> CallView::maybe_integer(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  if (const auto* x = std::get_if<int64_t>(arg)) return *x;
  if (const auto* x = std::get_if<bool>(arg)) return *x ? 1 : 0;
  if (const auto* list = std::get_if<std::vector<int64_t>>(arg); list && list->size() == 1)
    return list->front();
  wrong(*this, name, "an integer");
}

const Arg* CallView::known(std::string_view name) const {
  if (has(name)) return find(name);
  const Schema* schema = schema_of(op_);
  const Parameter* parameter = schema == nullptr ? nullptr : schema->find(name);
  return parameter != nullptr && parameter->otherwise ? &*parameter->otherwise : nullptr;
}

int64_t CallView::integer(std::string_view name) const {
  if (const auto x = maybe_integer(name)) return *x;
  if (const Arg* arg = known(name))
    if (const auto* x = std::get_if<int64_t>(arg)) return *x;
  wrong(*this, name, "an integer");
}

int64_t CallView::integer(std::string_view name, int64_t if_nil) const {
  return maybe_integer(name).value_or(if_nil);
}

double CallView::real(std::string_view name) const {
  const Arg* arg = known(name);
  if (!is_nil(arg)) {
    if (const auto* x = std::get_if<double>(arg)) return *x;
    if (const auto* x = std::get_if<int64_t>(arg)) return static_cast<double>(*x);
    if (const auto* x = std::get_if<bool>(arg)) return *x ? 1.0 : 0.0;
  }
  wrong(*this, name, "a number");
}

double CallView::real(std::string_view name, double if_nil) const {
  return has(name) ? real(name) : if_nil;
}

bool CallView::boolean(std::string_view name, bool if_nil) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return if_nil;
  const auto* x = std::get_if<bool>(arg);
  if (x == nullptr) wrong(*this, name, "true or false");
  return *x;
}

std::vector<int64_t> CallView::ints(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  if (const auto* list = std::get_if<std::vector<int64_t>>(arg)) return *list;
  if (const auto* one = std::get_if<int64_t>(arg)) return {*one};
  if (const auto* none = std::get_if<std::vector<ValueRef>>(arg); none && none->empty()) return {};
  wrong(*this, name, "a list of integers");
}

std::vector<double> CallView::reals(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  if (const auto* list = std::get_if<std::vector<double>>(arg)) return *list;
  const auto whole = ints(name);
  return {whole.begin(), whole.end()};
}

std::vector<bool> CallView::bools(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  const auto* list = std::get_if<std::vector<bool>>(arg);
  if (list == nullptr) wrong(*this, name, "a list of booleans");
  return *list;
}

std::optional<DType> CallView::dtype(std::string_view name) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return {};
  const auto* x = std::get_if<DType>(arg);
  if (x == nullptr) wrong(*this, name, "a dtype");
  return *x;
}

std::string CallView::text(std::string_view name, std::string_view if_nil) const {
  const Arg* arg = find(name);
  if (is_nil(arg)) return std::string(if_nil);
  if (const auto* x = std::get_if<std::string>(arg)) return *x;
  if (const auto* x = std::get_if<graph::Symbol>(arg)) return x->name;
  wrong(*this, name, "a string");
}

int64_t CallView::dim(std::string_view name, std::string_view tensor) const {
  return wrap(integer(name), rank(tensor));
}

std::vector<int64_t> CallView::dims(std::string_view name, std::string_view tensor) const {
  std::vector<int64_t> result = ints(name);
  const int64_t n = rank(tensor);
  if (result.empty())
    for (int64_t i = 0; i < n; ++i) result.push_back(i);
  for (int64_t& d : result) d = wrap(d, n);
  if (n == 0) result.clear();
  return result;
}

std::vector<const TensorType*> CallView::operands() const {
  std::vector<const TensorType*> out;
  for (const NamedArg& arg : *args_) {
    if (is_nil(&arg.value)) continue;
    if (const auto* ref = std::get_if<ValueRef>(&arg.value)) out.push_back(&type_of_(ref->id));
    if (const auto* list = std::get_if<std::vector<ValueRef>>(&arg.value))
      for (const ValueRef ref : *list)
        if (ref.id >= 0) out.push_back(&type_of_(ref.id));
  }
  return out;
}

void CallView::fail(const std::string& text) const {
  std::string_view name = base();
  if (const size_t colons = name.find("::"); colons != std::string_view::npos)
    name.remove_prefix(colons + 2);
  nns::fail(ErrorKind::model, "[annotate.{}] {}", name, text);
}

}  // namespace nns::operators
