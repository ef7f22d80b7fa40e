#include "trace/convert.h"

#include <sstream>

#include "base/error.h"
#include "tensor/box.h"

namespace nns::trace {

using c10::IValue;
using c10::TypeKind;
using graph::Arg;
using graph::Symbol;

c10::TypePtr plain_type(c10::TypePtr type) {
  while (type->kind() == TypeKind::OptionalType)
    type = type->expectRef<c10::OptionalType>().getElementType();
  return type;
}

namespace {

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

}  // namespace

Arg to_arg(const IValue& value, const c10::Argument& argument, const std::string& op) {
  const c10::TypePtr type = plain_type(argument.real_type());
  if (value.isNone()) return std::monostate{};
  if (value.isGenerator())
    throw Error(ErrorKind::model,
                fmt::format("[trace.random] {} draws from a generator, whose state a graph cannot "
                            "hold",
                            op),
                "in a model use F.randn_like, F.rand_like, F.normal, F.bernoulli or F.dropout "
                "without a generator: their draws follow from seed, module path and step");
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

std::optional<c10::MemoryFormat> find_format(std::string_view name) {
  for (const auto& [known, format] : kFormats)
    if (known == name) return format;
  return std::nullopt;
}

std::optional<c10::OperatorHandle> find_operator(const std::string& op) {
  const size_t dot = op.find('.', op.find("::"));
  c10::OperatorName name(op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchema(name);
}

}  // namespace nns::trace
