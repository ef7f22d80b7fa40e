// Writes to tensors while a model is traced: the written tensor becomes a new value that the
// operator which returns its result makes.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "base/error.h"
#include "operators/record.h"
#include "script/state.h"
#include "tensor/operators.h"
#include "trace/convert.h"
#include "trace/recorder.h"
#include "trace/rules.h"

namespace nns::trace {
namespace {

using graph::ValueRef;

NamedArg* find(std::vector<NamedArg>& args, std::string_view name) {
  for (NamedArg& arg : args)
    if (arg.name == name) return &arg;
  return nullptr;
}

// The overload that returns what `op` writes to its argument `out`, where there is one.
std::optional<std::string> returning_form(const std::string& op) {
  const tensor::Operator* self = tensor::find_operator(op);
  const tensor::Operator* all =
      tensor::find_operator(std::string_view(op).substr(0, op.find('.', op.find("::"))));
  if (self == nullptr || all == nullptr) return std::nullopt;
  const auto& wanted = self->overloads.at(0).op.schema().arguments();
  for (const tensor::Overload& other : all->overloads) {
    const auto& given = other.op.schema().arguments();
    const bool same = std::equal(given.begin(), given.end(), wanted.begin(), wanted.end() - 1,
                                 [](const c10::Argument& a, const c10::Argument& b) {
                                   return a.name() == b.name() && *a.type() == *b.type() &&
                                          a.alias_info() == nullptr;
                                 });
    if (same && !other.out) return other.full_name;
  }
  return std::nullopt;
}

}  // namespace

int Recorder::record_in_place(lua_State* L, const std::string& op, std::vector<NamedArg> args,
                              const std::vector<int>& handles) {
  const bool last = !args.empty() && args.back().name == "out";
  const auto functional = last ? returning_form(op) : operators::functional_form(op);
  const size_t written = last ? args.size() - 1 : 0;
  if (!functional || handles.empty() || handles[written] < 0)
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.write] {} writes to its arguments in a way that a graph cannot hold",
                    op),
        "use the operator that returns its result");
  const int target = handles[written];
  places_.check_writable(target, op);
  const ValueRef before = std::get<ValueRef>(args[written].value);
  if (!site_.context.grad_enabled && type_requires_grad(before.id))
    throw Error(
        ErrorKind::model,
        fmt::format("[trace.write] {} writes under no_grad to a tensor that requires a gradient",
                    op),
        "write to `x:detach():clone()`, or outside no_grad");
  consumed_[static_cast<size_t>(before.id)] = true;  // `x[0] = v` makes a view only to write to it
  const TensorType type = type_of(before);
  const operators::Record* record = operators::find(*functional);
  const bool casts = record != nullptr && record->overwrite && record->overwrite->casts;
  const int value = fit(in_place_value(op, *functional, args), type, op, casts);
  places_.write(target, value, describe(site_));
  if (auto& traced = traced_for(target)) traced->requires_grad = type_requires_grad(value);
  lua_pushnil(L);  // the door returns the caller's own tensor
  return 1;
}

// What the written tensor holds afterwards.
int Recorder::in_place_value(const std::string& op, const std::string& functional,
                             std::vector<NamedArg>& args) {
  const ValueRef self = std::get<ValueRef>(args[0].value);
  const TensorType type = type_of(self);
  const operators::Record* record = operators::find(functional);
  if (record != nullptr && record->overwrite) {
    const NamedArg* filler = find(args, record->overwrite->content);
    const Arg content = filler != nullptr ? filler->value : Arg(int64_t{0});
    if (const auto* ref = std::get_if<ValueRef>(&content)) {
      const Shape shape = type_of(*ref).shape;
      consumed_[static_cast<size_t>(ref->id)] = true;
      if (shape == type.shape) return ref->id;
      return emit_one("aten::expand", {{"self", *ref}, {"size", type.shape}, {"implicit", false}});
    }
    return emit_one("aten::full_like", {{"self", self},
                                        {"fill_value", content},
                                        {"dtype", std::monostate{}},
                                        {"layout", std::monostate{}},
                                        {"device", std::monostate{}},
                                        {"pin_memory", std::monostate{}},
                                        {"memory_format", std::monostate{}}});
  }
  // The functional operator takes the same arguments; ones of its own keep their defaults.
  const auto handle = find_operator(functional);
  if (!handle) fail(ErrorKind::model, "[trace.write] {} has no form that returns its result", op);
  std::vector<NamedArg> matched;
  for (const c10::Argument& declared : handle->schema().arguments()) {
    if (NamedArg* given = find(args, declared.name()))
      matched.push_back(*given);
    else if (declared.default_value())
      matched.push_back({declared.name(), to_arg(*declared.default_value(), declared, functional)});
    else
      fail(ErrorKind::internal, "[trace.write] {} wants '{}', which {} lacks", functional,
           declared.name(), op);
  }
  return emit_one(functional, std::move(matched));
}

int Recorder::fit(int value, const TensorType& type, const std::string& op, bool casts) {
  const TensorType now = type_of({value});
  if (now.shape != type.shape)
    fail(ErrorKind::model, "[trace.write] {} makes {}, which does not fit into {}", op,
         to_string(now), to_string(type));
  if (now.dtype == type.dtype) return value;
  const auto rank = [](DType t) {
    return t == DType::boolean ? 0 : is_complex(t) ? 3 : is_floating(t) ? 2 : 1;
  };
  if (!casts && rank(now.dtype) > rank(type.dtype))
    fail(ErrorKind::model, "[trace.write] {} makes {}, which cannot be kept in {}", op,
         to_string(now), to_string(type));
  return emit_one("aten::to.dtype", {{"self", ValueRef{value}},
                                     {"dtype", type.dtype},
                                     {"non_blocking", false},
                                     {"copy", false},
                                     {"memory_format", std::monostate{}}});
}

}  // namespace nns::trace
