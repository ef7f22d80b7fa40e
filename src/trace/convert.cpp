#include "trace/convert.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/MemoryFormat.h>

#include <sstream>

#include "base/error.h"
#include "tensor/box.h"

namespace nns::trace {
namespace {

using c10::IValue;
using c10::TypeKind;
using graph::Arg;
using graph::Symbol;
using graph::ValueRef;

// The type under `optional` ("int?" → "int"), as the schema spells it (ScalarType is not int).
c10::TypePtr plain_type(c10::TypePtr type) {
  while (type->kind() == TypeKind::OptionalType)
    type = type->expectRef<c10::OptionalType>().getElementType();
  return type;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

constexpr std::pair<std::string_view, c10::MemoryFormat> kFormats[] = {
    {"contiguous_format", c10::MemoryFormat::Contiguous},
    {"preserve_format", c10::MemoryFormat::Preserve},
    {"channels_last", c10::MemoryFormat::ChannelsLast},
    {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d},
};

Symbol format_symbol(c10::MemoryFormat format) {
  for (const auto& [name, known] : kFormats)
    if (known == format) return {std::string(name)};
  fail(ErrorKind::model, "[trace.argument] unknown memory format {}", static_cast<int>(format));
}

IValue list_value(const Arg& arg, const c10::TypePtr& element,
                  const std::vector<graph::Value>& values);

// The way back, for the Meta kernel: tensors become tensors without data.
IValue to_ivalue(const Arg& arg, const c10::TypePtr& declared,
                 const std::vector<graph::Value>& values) {
  if (std::holds_alternative<std::monostate>(arg)) return {};
  const c10::TypePtr type = plain_type(declared);
  if (const auto* ref = std::get_if<ValueRef>(&arg)) {
    if (ref->id < 0) return {};
    const TensorType& t = values.at(static_cast<size_t>(ref->id)).type;
    return at::empty(t.shape,
                     at::TensorOptions().device(at::kMeta).dtype(tensor::to_torch(t.dtype)));
  }
  if (type->kind() == TypeKind::ListType)
    return list_value(arg, plain_type(type->expectRef<c10::ListType>().getElementType()), values);
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
    if (type->kind() == TypeKind::DeviceObjType) return c10::Device(c10::DeviceType::Meta);
    for (const auto& [name, format] : kFormats)
      if (symbol->name == name) return format;
    return c10::Layout::Strided;
  }
  fail(ErrorKind::internal, "[trace.argument] an argument has no form for LibTorch");
}

IValue list_value(const Arg& arg, const c10::TypePtr& element,
                  const std::vector<graph::Value>& values) {
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
      const IValue value = to_ivalue(ref, element, values);
      if (value.isTensor()) list.push_back(value.toTensor());
      optionals.push_back(value.isTensor() ? std::optional(value.toTensor()) : std::nullopt);
    }
    if (optional) return optionals;
    return list;
  }
  fail(ErrorKind::internal, "[trace.argument] a list has no form for LibTorch");
}

}  // namespace

Arg to_arg(const IValue& value, const c10::Argument& argument, const std::string& op) {
  const c10::TypePtr type = plain_type(argument.real_type());
  if (value.isNone()) return std::monostate{};
  switch (type->kind()) {
    case TypeKind::ScalarTypeType:
      return tensor::from_torch(static_cast<c10::ScalarType>(value.toInt()));
    case TypeKind::LayoutType:
      return Symbol{"strided"};
    case TypeKind::MemoryFormatType:
      return format_symbol(static_cast<c10::MemoryFormat>(value.toInt()));
    case TypeKind::DeviceObjType:
      // A graph does not depend on where it will run.
      if (argument.real_type()->kind() == TypeKind::OptionalType) return std::monostate{};
      return Symbol{value.toDevice().str()};
    default:
      break;
  }
  if (value.isBool()) return value.toBool();
  if (value.isInt()) {
    if (type->kind() == TypeKind::FloatType) return static_cast<double>(value.toInt());
    return value.toInt();
  }
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    std::vector<bool> out;
    for (bool b : value.toBoolList()) out.push_back(b);
    return out;
  }
  if (value.isList()) {
    const auto list = value.toListRef();
    if (std::all_of(list.begin(), list.end(), [](const IValue& v) { return v.isInt(); })) {
      std::vector<int64_t> out;
      for (const IValue& v : list) out.push_back(v.toInt());
      return out;
    }
    if (std::all_of(list.begin(), list.end(),
                    [](const IValue& v) { return v.isInt() || v.isDouble(); })) {
      std::vector<double> out;
      for (const IValue& v : list) out.push_back(v.toScalar().toDouble());
      return out;
    }
  }
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0) {
    // A number where the schema wants a tensor: it stays a number.
    const at::Scalar number = value.toTensor().item();
    if (number.isBoolean()) return number.toBool();
    if (number.isIntegral(false)) return number.toLong();
    if (number.isFloatingPoint()) return number.toDouble();
  }
  fail(ErrorKind::model, "[trace.argument] {}: argument '{}' of type {} cannot be part of a graph",
       op, argument.name(), printed(*argument.real_type()));
}

std::optional<c10::OperatorHandle> find_operator(const std::string& op) {
  const size_t dot = op.find('.', op.find("::"));
  c10::OperatorName name(op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchema(name);
}

std::optional<std::vector<TensorType>> infer_by_meta(const std::string& op,
                                                     const std::vector<graph::NamedArg>& args,
                                                     const std::vector<graph::Value>& values,
                                                     std::string& why) {
  const auto handle = find_operator(op);
  if (!handle) {
    why = "no such operator";
    return std::nullopt;
  }
  const auto& declared = handle->schema().arguments();
  c10::AutoGradMode no_grad(false);
  try {
    torch::jit::Stack stack;
    for (size_t i = 0; i < declared.size(); ++i)
      stack.push_back(to_ivalue(args[i].value, declared[i].real_type(), values));
    // A factory has no tensor to say where it runs.
    for (size_t i = 0; i < declared.size(); ++i)
      if (plain_type(declared[i].real_type())->kind() == TypeKind::DeviceObjType)
        stack[i] = c10::Device(c10::DeviceType::Meta);
    handle->callBoxed(stack);
    std::vector<TensorType> types;
    for (const IValue& result : stack) {
      if (result.isTensor()) {
        types.push_back(tensor::type_of(result.toTensor()));
      } else if (result.isTensorList()) {
        for (const at::Tensor& t : result.toTensorVector()) types.push_back(tensor::type_of(t));
      } else {
        why = "a result is not a tensor";
        return std::nullopt;
      }
    }
    return types;
  } catch (const c10::Error& e) {
    why = e.what_without_backtrace();
    why = why.substr(0, why.find('\n'));
    return std::nullopt;
  }
}

}  // namespace nns::trace
