// How shapes are found by LibTorch: its Meta kernels, or a run on the CPU.
#include "trace/shapes.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "tensor/box.h"
#include "trace/convert.h"

namespace nns::trace {
namespace {

using c10::IValue;
using c10::TypeKind;
using graph::Arg;
using graph::NamedArg;
using graph::Symbol;
using graph::ValueRef;
using Types = std::vector<TensorType>;

constexpr int64_t kMostElements = 1 << 20;  // of all tensors of a call that runs on true shapes
constexpr int64_t kSmall = 8;               // sizes up to it are never changed
constexpr int64_t kStep = 2;                // by which small sizes are varied: even stays even
constexpr int64_t kFar = 16;                // steps after which growth must still be linear

// What stands for the tensors of a call.
struct Tensors {
  c10::Device device;
  std::function<at::Tensor(ValueRef)> make;
};

IValue list_value(const Arg& arg, const c10::TypePtr& element, const Tensors& tensors);

// The way back of `to_arg`.
IValue to_ivalue(const Arg& arg, const c10::TypePtr& declared, const Tensors& tensors) {
  if (std::holds_alternative<std::monostate>(arg)) return {};
  const c10::TypePtr type = plain_type(declared);
  if (const auto* ref = std::get_if<ValueRef>(&arg)) {
    if (ref->id < 0) return {};
    return tensors.make(*ref);
  }
  if (type->kind() == TypeKind::ListType)
    return list_value(arg, plain_type(type->expectRef<c10::ListType>().getElementType()), tensors);
  if (type->kind() == TypeKind::TensorType) {  // a number in a tensor's place
    const at::Scalar number =
        std::holds_alternative<double>(arg)    ? at::Scalar(std::get<double>(arg))
        : std::holds_alternative<int64_t>(arg) ? at::Scalar(std::get<int64_t>(arg))
                                               : at::Scalar(std::get<bool>(arg));
    at::Tensor wrapped = c10::scalar_to_tensor(number);
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
    return wrapped;
  }
  if (const auto* b = std::get_if<bool>(&arg)) return *b;
  if (const auto* i = std::get_if<int64_t>(&arg)) {
    if (type->kind() == TypeKind::FloatType) return static_cast<double>(*i);
    return *i;
  }
  if (const auto* d = std::get_if<double>(&arg)) return *d;
  if (const auto* s = std::get_if<std::string>(&arg)) return *s;
  if (const auto* dtype = std::get_if<DType>(&arg)) return tensor::to_torch(*dtype);
  if (const auto* symbol = std::get_if<Symbol>(&arg)) {
    if (type->kind() == TypeKind::DeviceObjType) return tensors.device;
    if (const auto format = find_format(symbol->name)) return *format;
    return c10::Layout::Strided;
  }
  fail(ErrorKind::internal, "[trace.argument] an argument has no form for LibTorch");
}

IValue list_value(const Arg& arg, const c10::TypePtr& element, const Tensors& tensors) {
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&arg)) return *ints;
  if (const auto* reals = std::get_if<std::vector<double>>(&arg)) return *reals;
  if (const auto* bools = std::get_if<std::vector<bool>>(&arg)) {
    c10::List<bool> list;
    for (bool b : *bools) list.push_back(b);
    return list;
  }
  const auto& refs = std::get<std::vector<ValueRef>>(arg);
  if (element->kind() == TypeKind::TensorType) {
    c10::List<at::Tensor> list;
    c10::List<std::optional<at::Tensor>> optionals;
    const bool optional = std::any_of(refs.begin(), refs.end(), [](auto r) { return r.id < 0; });
    for (const ValueRef ref : refs) {
      const IValue value = to_ivalue(ref, element, tensors);
      if (value.isTensor()) list.push_back(value.toTensor());
      optionals.push_back(value.isTensor() ? std::optional(value.toTensor()) : std::nullopt);
    }
    if (optional) return optionals;
    return list;
  }
  fail(ErrorKind::internal, "[trace.argument] a list has no form for LibTorch");
}

Types types_of(const torch::jit::Stack& stack) {
  Types types;
  for (const IValue& result : stack) {
    if (result.isTensor())
      types.push_back(tensor::type_of(result.toTensor()));
    else if (result.isTensorList())
      for (const at::Tensor& t : result.toTensorVector()) types.push_back(tensor::type_of(t));
    else
      throw Error(ErrorKind::model, "a result is not a tensor");
  }
  return types;
}

// Runs the call with these tensors.
Types run(const c10::OperatorHandle& handle, const std::vector<NamedArg>& args,
          const Tensors& tensors) {
  const auto& declared = handle.schema().arguments();
  const c10::AutoGradMode no_grad(false);
  torch::jit::Stack stack;
  for (size_t i = 0; i < declared.size(); ++i)
    stack.push_back(to_ivalue(args[i].value, declared[i].real_type(), tensors));
  // A factory has no tensor to say where it runs.
  for (size_t i = 0; i < declared.size(); ++i)
    if (plain_type(declared[i].real_type())->kind() == TypeKind::DeviceObjType)
      stack[i] = tensors.device;
  handle.callBoxed(stack);
  return types_of(stack);
}

// Sizes that stand for others.
using Sizes = std::map<int64_t, int64_t>;

// Runs on the CPU, on tensors whose elements are all equal and take no memory.
Types run_small(const c10::OperatorHandle& handle, const std::vector<NamedArg>& args,
                const std::vector<graph::Value>& values, const Sizes& sizes, double element) {
  const auto make = [&](ValueRef ref) {
    const graph::Value& value = values.at(static_cast<size_t>(ref.id));
    const auto options = at::TensorOptions().dtype(tensor::to_torch(value.type.dtype));
    if (!value.data.empty())
      return at::from_blob(const_cast<char*>(value.data.data()), value.type.shape, options).clone();
    Shape shape = value.type.shape;
    for (int64_t& size : shape)
      if (const auto it = sizes.find(size); it != sizes.end()) size = it->second;
    // Integers may be indices, which are always right at 0.
    const bool index = !is_floating(value.type.dtype) && !is_complex(value.type.dtype) &&
                       value.type.dtype != DType::boolean;
    const at::Scalar fill = index                                ? at::Scalar(0)
                            : value.type.dtype == DType::boolean ? at::Scalar(element > 0)
                                                                 : at::Scalar(element);
    return at::full({}, fill, options).expand(shape);
  };
  return run(handle, args, {c10::Device(c10::DeviceType::CPU), make});
}

// The same shapes whatever the elements are.
Types run_twice(const c10::OperatorHandle& handle, const std::vector<NamedArg>& args,
                const std::vector<graph::Value>& values, const Sizes& sizes) {
  Types types = run_small(handle, args, values, sizes, 0.5);
  Types other;
  try {
    other = run_small(handle, args, values, sizes, -0.25);
  } catch (const std::exception&) {
    return types;  // only some elements are legal
  }
  if (types != other)
    throw Error(ErrorKind::model, "the shapes of its results depend on the elements of tensors");
  return types;
}

// Result sizes as linear functions of those sizes that are too large to run with. Odd sizes are
// odd in small too, so that halves are exact; far from the first sizes, squares and divisions by
// what is up to kFar * kStep are seen not to be linear.
Types run_in_small(const c10::OperatorHandle& handle, const std::vector<NamedArg>& args,
                   const std::vector<graph::Value>& values, const std::vector<int>& operands) {
  Sizes base;
  for (int id : operands) {
    const graph::Value& value = values[static_cast<size_t>(id)];
    for (int64_t size : value.type.shape)
      if (size > kSmall && value.data.empty()) base.emplace(size, 0);
  }
  int64_t next = kSmall;
  for (auto& [size, small] : base) {
    next += kStep + kStep;
    small = std::min(size, next + size % kStep);
  }
  Types types = run_twice(handle, args, values, base), all = types;
  Sizes grown = base;
  const Types first = types;
  for (const auto& [size, small] : base) {
    Sizes sizes = base;
    sizes[size] = small + kStep;
    grown[size] = small + kFar * kStep;
    const Types other = run_small(handle, args, values, sizes, 0.5);
    for (size_t k = 0; k < types.size(); ++k)
      for (size_t d = 0; d < types[k].shape.size(); ++d) {
        const int64_t change = other.at(k).shape.at(d) - first[k].shape[d];
        const int64_t far = change * (size - small);
        if (far % kStep != 0)
          throw Error(ErrorKind::model, "the sizes of its results are not known at this size");
        types[k].shape[d] += far / kStep;
        all[k].shape[d] += kFar * change;
      }
  }
  if (run_small(handle, args, values, grown, 0.5) != all)
    throw Error(ErrorKind::model,
                "the sizes of its results do not grow linearly with those of its operands");
  return types;
}

std::string reason(const std::exception& e) {
  const auto* torch = dynamic_cast<const c10::Error*>(&e);
  const auto* own = dynamic_cast<const Error*>(&e);
  const std::string text = torch != nullptr ? torch->what_without_backtrace()
                           : own != nullptr ? own->message()
                                            : e.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::optional<Types> infer_by_libtorch(const std::string& op, const std::vector<NamedArg>& args,
                                       const std::vector<graph::Value>& values, std::string& why) {
  const auto handle = find_operator(op);
  if (!handle) {
    why = "no such operator";
    return std::nullopt;
  }
  const auto without_data = [&](ValueRef ref) {
    const TensorType& t = values.at(static_cast<size_t>(ref.id)).type;
    return at::empty(t.shape,
                     at::TensorOptions().device(at::kMeta).dtype(tensor::to_torch(t.dtype)));
  };
  try {
    return run(*handle, args, {c10::Device(c10::DeviceType::Meta), without_data});
  } catch (const std::exception&) {
    // What the CPU says below is the better reason.
  }
  graph::Node node;
  node.args = args;
  const std::vector<int> operands = graph::inputs_of(node);
  int64_t elements = 0;
  for (int id : operands) elements += numel(values.at(static_cast<size_t>(id)).type.shape);
  try {
    return elements <= kMostElements ? run_twice(*handle, args, values, {})
                                     : run_in_small(*handle, args, values, operands);
  } catch (const std::exception& e) {
    why = reason(e);
    return std::nullopt;
  }
}

}  // namespace nns::trace
