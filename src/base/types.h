// The small vocabulary that every stage speaks: element types, shapes, source places, hashes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nns {

using Shape = std::vector<int64_t>;

enum class DType : uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean, c64, c128 };

// Returns the name as scripts and graphs spell it: float64, float32, bfloat16, float16, int64,
// int32, int16, int8, uint8, bool, complex64, complex128.
std::string_view name_of(DType dtype);
// Returns the dtype with this name, or nothing. Also knows double, float, half, long, int.
std::optional<DType> dtype_from_name(std::string_view name);
// Bytes of one element.
int64_t size_of(DType dtype);
bool is_floating(DType dtype);
bool is_complex(DType dtype);
// Returns the type of an operation between tensors of the two types (PyTorch's promotion rules
// for tensors that both have dimensions).
DType promote(DType a, DType b);

int64_t numel(const Shape& shape);
// "[2, 3]"; a scalar is "[]".
std::string to_string(const Shape& shape);

struct TensorType {
  Shape shape;
  DType dtype = DType::f32;
  bool operator==(const TensorType&) const = default;
};
// "float32[2, 3]"
std::string to_string(const TensorType& type);
int64_t bytes_of(const TensorType& type);

struct SourceLoc {
  std::string file;
  int line = 0;
};
// "gpt.lua:31": the last part of the path only.
std::string short_form(const SourceLoc& loc);

// 64-bit FNV-1a, continued from `seed`; the same on every machine.
uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325ull);
// 16 lower-case hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace nns
