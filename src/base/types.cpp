#include "base/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace nns {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name, alias;
  int bytes;
};

constexpr std::array<DTypeRow, 12> kDTypes{{
    {DType::f64, "float64", "double", 8},
    {DType::f32, "float32", "float", 4},
    {DType::bf16, "bfloat16", "", 2},
    {DType::f16, "float16", "half", 2},
    {DType::i64, "int64", "long", 8},
    {DType::i32, "int32", "int", 4},
    {DType::i16, "int16", "short", 2},
    {DType::i8, "int8", "", 1},
    {DType::u8, "uint8", "byte", 1},
    {DType::boolean, "bool", "boolean", 1},
    {DType::c64, "complex64", "", 8},
    {DType::c128, "complex128", "", 16},
}};

const DTypeRow& row(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)];
}

int integer_rank(DType d) {
  switch (d) {
    case DType::i8:
      return 1;
    case DType::i16:
      return 2;
    case DType::i32:
      return 3;
    case DType::i64:
      return 4;
    default:
      return 0;  // bool and uint8
  }
}

}  // namespace

std::string_view name_of(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& r : kDTypes)
    if (r.name == name || (!r.alias.empty() && r.alias == name)) return r.dtype;
  return std::nullopt;
}

int64_t size_of(DType dtype) {
  return row(dtype).bytes;
}

bool is_floating(DType d) {
  return d == DType::f64 || d == DType::f32 || d == DType::bf16 || d == DType::f16;
}

bool is_complex(DType d) {
  return d == DType::c64 || d == DType::c128;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_complex(a) || is_complex(b)) {
    const bool wide = a == DType::c128 || b == DType::c128 || a == DType::f64 || b == DType::f64;
    return wide ? DType::c128 : DType::c64;
  }
  if (is_floating(a) && is_floating(b)) {
    if (a == DType::f64 || b == DType::f64) return DType::f64;
    return DType::f32;  // also bfloat16 with float16
  }
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  if (a == DType::boolean) return b;
  if (b == DType::boolean) return a;
  if (a == DType::u8) return integer_rank(b) == 1 ? DType::i16 : b;
  if (b == DType::u8) return integer_rank(a) == 1 ? DType::i16 : a;
  return integer_rank(a) > integer_rank(b) ? a : b;
}

int64_t numel(const Shape& shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string to_string(const TensorType& t) {
  return fmt::format("{}{}", name_of(t.dtype), to_string(t.shape));
}

int64_t bytes_of(const TensorType& type) {
  return numel(type.shape) * size_of(type.dtype);
}

std::string short_form(const SourceLoc& loc) {
  const size_t slash = loc.file.rfind('/');
  const auto file = slash == std::string::npos ? loc.file : loc.file.substr(slash + 1);
  return fmt::format("{}:{}", file, loc.line);
}

uint64_t hash_bytes(std::string_view bytes, uint64_t seed) {
  uint64_t h = seed;
  for (unsigned char c : bytes) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace nns
