// Element types as the safetensors format spells them. complex128 has no name there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/types.h"

namespace nns::safetensors {

inline constexpr std::pair<std::string_view, DType> kFormatDtypes[] = {
    {"F64", DType::f64}, {"F32", DType::f32},      {"BF16", DType::bf16}, {"F16", DType::f16},
    {"I64", DType::i64}, {"I32", DType::i32},      {"I16", DType::i16},   {"I8", DType::i8},
    {"U8", DType::u8},   {"BOOL", DType::boolean}, {"C64", DType::c64}};

inline std::optional<DType> dtype_from_format(std::string_view name) {
  for (const auto& [text, dtype] : kFormatDtypes)
    if (text == name) return dtype;
  return {};
}
inline std::optional<std::string_view> format_name(DType dtype) {
  for (const auto& [text, known] : kFormatDtypes)
    if (known == dtype) return text;
  return {};
}
// "F64, F32, …"
inline std::string format_dtypes() {
  std::string out;
  for (const auto& pair : kFormatDtypes) {
    if (!out.empty()) out += ", ";
    out += pair.first;
  }
  return out;
}

}  // namespace nns::safetensors
