// Reads Lua values straight into the C++ types of an operator's parameters, for calls without
// boxing. A reader refuses whatever it does not know; the boxed door then takes the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "tensor/door.h"
#include "tensor/operators.h"

namespace nns::tensor {

struct FastFrame {
  lua_State* L;
  const Door& door;
  int positional;    // arguments at stack indices 1 … positional
  int keywords = 0;  // stack index of the keyword table, or 0
  int keyword_count = 0;
  int next = 1, used = 0;               // of both, while they are read
  bool seen = false, floating = false;  // tensors read so far, and whether one is not integral
};

inline bool read_integer(lua_State* L, int index, int64_t& out) {
  if (lua_type(L, index) != LUA_TNUMBER) return false;
  const double x = lua_tonumber(L, index);
  out = static_cast<int64_t>(x);
  return static_cast<double>(out) == x && std::fabs(x) <= 9007199254740992.0;
}

inline const at::Tensor* read_tensor(FastFrame& f, int index) {
  const Box* box = test_box_at(f.L, index);
  const at::Tensor* data = box != nullptr ? data_of(*box) : nullptr;
  if (data == nullptr) return nullptr;
  f.seen = true;
  f.floating = f.floating || !c10::isIntegralType(data->scalar_type(), /*includeBool=*/true);
  return data;
}

// For each parameter type: what is stored, `read` from a stack index, `absent` from the schema's
// default (an IValue, perhaps None), and `pass` to the operator.
template <class T>
struct Reader;

template <>
struct Reader<const at::Tensor&> {
  using Storage = const at::Tensor*;
  static bool read(FastFrame& f, int index, Storage& out) {
    return (out = read_tensor(f, index)) != nullptr;
  }
  static bool absent(const Want&, Storage&) { return false; }
  static const at::Tensor& pass(Storage& value) { return *value; }
};
template <>
struct Reader<at::Tensor&> : Reader<const at::Tensor&> {
  static at::Tensor& pass(Storage& value) { return const_cast<at::Tensor&>(*value); }
};
template <>
struct Reader<const std::optional<at::Tensor>&> {
  using Storage = std::optional<at::Tensor>;
  static bool read(FastFrame& f, int index, Storage& out) {
    const at::Tensor* data = read_tensor(f, index);
    if (data != nullptr) out = *data;
    return data != nullptr;
  }
  static bool absent(const Want&, Storage&) { return true; }
  static const Storage& pass(Storage& value) { return value; }
};

struct TensorsReader {
  using Storage = std::vector<at::Tensor>;
  static bool read(FastFrame& f, int index, Storage& out) {
    if (lua_type(f.L, index) != LUA_TTABLE) return false;
    const auto n = lua_objlen(f.L, index);
    out.reserve(n);
    for (size_t i = 1; i <= n; ++i) {
      lua_rawgeti(f.L, index, static_cast<int>(i));
      const at::Tensor* data = read_tensor(f, lua_gettop(f.L));
      lua_pop(f.L, 1);
      if (data == nullptr) return false;
      out.push_back(*data);
    }
    return n > 0;  // an empty table may mean no keywords
  }
  static bool absent(const Want&, Storage&) { return false; }
};
template <>
struct Reader<at::TensorList> : TensorsReader {
  static at::TensorList pass(Storage& value) { return value; }
};
template <>
struct Reader<const at::ITensorListRef&> : TensorsReader {
  static at::ITensorListRef pass(Storage& value) { return at::TensorList(value); }
};

template <>
struct Reader<const at::Scalar&> {
  using Storage = at::Scalar;
  static bool read(FastFrame& f, int index, Storage& out) {
    if (lua_type(f.L, index) != LUA_TNUMBER) return false;
    int64_t whole = 0;
    if (f.seen && !f.floating && read_integer(f.L, index, whole))
      out = whole;
    else
      out = static_cast<double>(lua_tonumber(f.L, index));
    return true;
  }
  static bool absent(const Want& want, Storage& out) {
    if (!want.has_default) return false;
    out = want.fallback.toScalar();
    return true;
  }
  static const at::Scalar& pass(Storage& value) { return value; }
};

// Plain values: Stored is what is kept, Convert reads it from Lua and from the default.
template <class Stored, bool (*From)(lua_State*, int, Stored&),
          Stored (*Default)(const c10::IValue&)>
struct PlainReader {
  using Storage = Stored;
  static bool read(FastFrame& f, int index, Storage& out) { return From(f.L, index, out); }
  static bool absent(const Want& want, Storage& out) {
    if (!want.has_default || want.fallback.isNone()) return false;
    out = Default(want.fallback);
    return true;
  }
  static Stored pass(Storage& value) { return value; }
};
template <class Stored, bool (*From)(lua_State*, int, Stored&),
          Stored (*Default)(const c10::IValue&)>
struct OptionalReader {
  using Storage = std::optional<Stored>;
  static bool read(FastFrame& f, int index, Storage& out) {
    Stored value{};
    if (!From(f.L, index, value)) return false;
    out = value;
    return true;
  }
  static bool absent(const Want& want, Storage& out) {
    if (want.has_default && !want.fallback.isNone()) out = Default(want.fallback);
    return true;
  }
  static Storage pass(Storage& value) { return value; }
};

inline bool read_real(lua_State* L, int index, double& out) {
  out = lua_tonumber(L, index);
  return lua_type(L, index) == LUA_TNUMBER;
}
inline bool read_bool(lua_State* L, int index, bool& out) {
  out = lua_toboolean(L, index) != 0;
  return lua_type(L, index) == LUA_TBOOLEAN;
}
inline bool read_dtype(lua_State* L, int index, at::ScalarType& out) {
  if (lua_type(L, index) != LUA_TSTRING) return false;
  const auto dtype = dtype_from_name(lua_tostring(L, index));
  if (dtype) out = to_torch(*dtype);
  return dtype.has_value();
}
inline bool read_text(lua_State* L, int index, c10::string_view& out) {
  if (lua_type(L, index) != LUA_TSTRING) return false;
  size_t size = 0;
  const char* text = lua_tolstring(L, index, &size);
  out = {text, size};
  return true;
}
inline bool read_format(lua_State*, int, at::MemoryFormat&) {
  return false;
}  // boxed knows names

inline int64_t int_of(const c10::IValue& v) {
  return v.toInt();
}
inline double real_of_value(const c10::IValue& v) {
  return v.toDouble();
}
inline bool bool_of(const c10::IValue& v) {
  return v.toBool();
}
inline at::ScalarType dtype_of(const c10::IValue& v) {
  return v.toScalarType();
}
inline at::MemoryFormat format_of(const c10::IValue& v) {
  return v.toMemoryFormat();
}
inline c10::string_view text_of(const c10::IValue& v) {
  return v.toStringView();
}

template <>
struct Reader<int64_t> : PlainReader<int64_t, read_integer, int_of> {};
template <>
struct Reader<double> : PlainReader<double, read_real, real_of_value> {};
template <>
struct Reader<bool> : PlainReader<bool, read_bool, bool_of> {};
template <>
struct Reader<at::ScalarType> : PlainReader<at::ScalarType, read_dtype, dtype_of> {};
template <>
struct Reader<at::MemoryFormat> : PlainReader<at::MemoryFormat, read_format, format_of> {};
template <>
struct Reader<c10::string_view> : PlainReader<c10::string_view, read_text, text_of> {};
template <>
struct Reader<std::optional<int64_t>> : OptionalReader<int64_t, read_integer, int_of> {};
template <>
struct Reader<std::optional<double>> : OptionalReader<double, read_real, real_of_value> {};
template <>
struct Reader<std::optional<bool>> : OptionalReader<bool, read_bool, bool_of> {};
template <>
struct Reader<std::optional<at::ScalarType>>
    : OptionalReader<at::ScalarType, read_dtype, dtype_of> {};
template <>
struct Reader<std::optional<at::MemoryFormat>>
    : OptionalReader<at::MemoryFormat, read_format, format_of> {};
// Layouts and devices are left to the boxed door unless they are not given.
template <class T>
struct NoneReader {
  using Storage = std::optional<T>;
  static bool read(FastFrame&, int, Storage&) { return false; }
  static bool absent(const Want& want, Storage&) { return want.fallback.isNone(); }
  static Storage pass(Storage& value) { return value; }
};
template <>
struct Reader<std::optional<at::Layout>> : NoneReader<at::Layout> {};
template <>
struct Reader<std::optional<at::Device>> : NoneReader<at::Device> {};
template <>
struct Reader<c10::SymInt> : Reader<int64_t> {
  static c10::SymInt pass(Storage& value) { return value; }
};
template <>
struct Reader<std::optional<c10::SymInt>> : Reader<std::optional<int64_t>> {
  static std::optional<c10::SymInt> pass(Storage& value) {
    return value ? std::optional<c10::SymInt>(*value) : std::nullopt;
  }
};

struct IntsReader {
  struct Storage {
    c10::SmallVector<int64_t, 6> values;
    bool given = false;
  };
  static bool read_list(lua_State* L, int index, bool one, Storage& out) {
    out.given = true;
    int64_t whole = 0;
    if (one && read_integer(L, index, whole)) {
      out.values.assign(1, whole);
      return true;
    }
    if (lua_type(L, index) != LUA_TTABLE) return false;
    const auto n = lua_objlen(L, index);
    if (n == 0) return false;
    out.values.resize(n);
    bool ok = true;
    for (size_t i = 0; i < n; ++i) {
      lua_rawgeti(L, index, static_cast<int>(i + 1));
      ok = ok && read_integer(L, -1, out.values[i]);
      lua_pop(L, 1);
    }
    return ok;
  }
  static bool read(FastFrame& f, int index, Storage& out) {
    return read_list(f.L, index, false, out);
  }
  static bool absent(const Want&, Storage&) { return false; }
};
template <>
struct Reader<at::IntArrayRef> : IntsReader {
  static at::IntArrayRef pass(Storage& value) { return value.values; }
};
template <>
struct Reader<c10::SymIntArrayRef> : IntsReader {
  static c10::SymIntArrayRef pass(Storage& value) { return c10::fromIntArrayRefSlow(value.values); }
};
template <>
struct Reader<at::OptionalIntArrayRef> : IntsReader {  // int[1]?
  static bool read(FastFrame& f, int index, Storage& out) {
    return read_list(f.L, index, true, out);
  }
  static bool absent(const Want& want, Storage&) { return want.fallback.isNone(); }
  static at::OptionalIntArrayRef pass(Storage& value) {
    if (!value.given) return std::nullopt;
    return at::IntArrayRef(value.values);
  }
};
template <size_t N>
struct Reader<std::array<bool, N>> {
  using Storage = std::array<bool, N>;
  static bool read(FastFrame& f, int index, Storage& out) {
    if (lua_type(f.L, index) != LUA_TTABLE || lua_objlen(f.L, index) != N) return false;
    bool ok = true;
    for (size_t i = 0; i < N; ++i) {
      lua_rawgeti(f.L, index, static_cast<int>(i + 1));
      ok = ok && read_bool(f.L, -1, out[i]);
      lua_pop(f.L, 1);
    }
    return ok;
  }
  static bool absent(const Want&, Storage&) { return false; }
  static Storage pass(Storage& value) { return value; }
};

}  // namespace nns::tensor
