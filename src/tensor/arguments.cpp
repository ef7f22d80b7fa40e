// Overload resolution and conversion of Lua values.
#include "tensor/arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Generator.h>

#include <algorithm>
#include <cmath>

#include "script/state.h"

namespace nns::tensor {
namespace {

enum class Pass { strict, wrapped, gathered };

constexpr std::array<const char*, 4> kMemoryFormats = {"contiguous_format", "preserve_format",
                                                       "channels_last", "channels_last_3d"};
constexpr std::array<const char*, 1> kLayouts = {"strided"};

template <size_t N>
int find_name(const std::array<const char*, N>& names, std::string_view name) {
  const auto it = std::find(names.begin(), names.end(), name);
  return it == names.end() ? -1 : static_cast<int>(it - names.begin());
}

bool looks_like_device(std::string_view name) {
  const std::string_view base = name.substr(0, name.find(':'));
  for (const char* known : {"cpu", "cuda", "meta", "mps", "xpu", "hpu", "xla", "privateuseone"})
    if (base == known) return true;
  return false;
}

std::string_view text_at(lua_State* L, int index) {
  size_t size = 0;
  const char* text = lua_tolstring(L, index, &size);
  return {text, size};
}

bool integer_at(lua_State* L, int index, int64_t& out) {
  if (lua_type(L, index) != LUA_TNUMBER) return false;
  const double x = lua_tonumber(L, index);
  if (std::floor(x) != x || std::fabs(x) > 9007199254740992.0) return false;
  out = static_cast<int64_t>(x);
  return true;
}

at::Scalar scalar_at(Frame& frame, int index) {
  int64_t whole = 0;
  if (integer_at(frame.L, index, whole) && frame.integral()) return whole;
  return lua_tonumber(frame.L, index);
}

at::Tensor wrapped_number(const at::Scalar& scalar) {
  at::Tensor tensor = c10::scalar_to_tensor(scalar);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// One value that is not a list. `index` may be relative to the top.
bool read_one(Frame& frame, const Want& want, int index, Pass pass, Operand& out) {
  lua_State* L = frame.L;
  const int type = lua_type(L, index);
  switch (want.kind) {
    case Kind::tensor:
      if (Box* box = test_box_at(L, index)) {
        out = box;
        return true;
      }
      if (pass != Pass::strict && type == LUA_TNUMBER) {
        out = c10::IValue(wrapped_number(scalar_at(frame, index)));
        return true;
      }
      return false;
    case Kind::scalar:
      if (type == LUA_TBOOLEAN)
        out = c10::IValue(lua_toboolean(L, index) != 0);
      else if (type == LUA_TNUMBER)
        out = c10::IValue(scalar_at(frame, index));
      else
        return false;
      return true;
    case Kind::integer: {
      int64_t whole = 0;
      if (!integer_at(L, index, whole)) return false;
      out = c10::IValue(whole);
      return true;
    }
    case Kind::real:
      if (type != LUA_TNUMBER) return false;
      out = c10::IValue(lua_tonumber(L, index));
      return true;
    case Kind::boolean:
      if (type != LUA_TBOOLEAN) return false;
      out = c10::IValue(lua_toboolean(L, index) != 0);
      return true;
    case Kind::generator:
      if (type != LUA_TUSERDATA || lua_getmetatable(L, index) == 0) return false;
      luaL_getmetatable(L, kGeneratorType);
      if (lua_rawequal(L, -1, -2) != 0) {
        lua_pop(L, 2);
        out = c10::IValue(*static_cast<at::Generator*>(lua_touserdata(L, index)));
        return true;
      }
      lua_pop(L, 2);
      return false;
    case Kind::other:
      return false;
    default:
      break;
  }
  if (type != LUA_TSTRING) return false;
  const std::string_view text = text_at(L, index);
  switch (want.kind) {
    case Kind::string:
      out = c10::IValue(std::string(text));
      return true;
    case Kind::dtype: {
      const auto dtype = dtype_from_name(text);
      if (!dtype) return false;
      out = c10::IValue(to_torch(*dtype));
      return true;
    }
    case Kind::device:
      if (!looks_like_device(text)) return false;
      out = c10::IValue(device_from_name(std::string(text)));
      return true;
    case Kind::memory_format: {
      const int format = memory_format_from_name(text);
      if (format < 0) return false;
      out = c10::IValue(static_cast<c10::MemoryFormat>(format));
      return true;
    }
    case Kind::layout: {
      const int layout = layout_from_name(text);
      if (layout < 0) return false;
      out = c10::IValue(static_cast<c10::Layout>(layout));
      return true;
    }
    default:
      return false;
  }
}

template <class T, class Get>
c10::IValue list_of(const std::vector<Operand>& items, Get get) {
  c10::List<T> list;
  list.reserve(items.size());
  for (const Operand& item : items) list.push_back(get(std::get<c10::IValue>(item)));
  return list;
}

// Joins read elements into one operand.
Operand join(Kind kind, std::vector<Operand>& items) {
  switch (kind) {
    case Kind::tensor: {
      std::vector<Box*> boxes;
      for (Operand& item : items) boxes.push_back(std::get<Box*>(item));
      return boxes;
    }
    case Kind::integer:
      return list_of<int64_t>(items, [](const c10::IValue& v) { return v.toInt(); });
    case Kind::real:
      return list_of<double>(items, [](const c10::IValue& v) { return v.toDouble(); });
    case Kind::boolean:
      return list_of<bool>(items, [](const c10::IValue& v) { return v.toBool(); });
    case Kind::string:
      return list_of<std::string>(items, [](const c10::IValue& v) { return v.toStringRef(); });
    default: {
      c10::impl::GenericList list(c10::NumberType::get());
      for (Operand& item : items) list.push_back(std::get<c10::IValue>(item));
      return c10::IValue(list);
    }
  }
}

bool has_keys(lua_State* L, int table) {
  lua_pushnil(L);
  if (lua_next(L, table) == 0) return false;
  lua_pop(L, 2);
  return true;
}

bool read_list(Frame& frame, const Want& want, int index, Operand& out) {
  lua_State* L = frame.L;
  std::vector<Operand> items;
  if (want.sized && lua_type(L, index) != LUA_TTABLE) {
    items.resize(1);
    if (!read_one(frame, want, index, Pass::strict, items[0])) return false;
    out = join(want.kind, items);
    return true;
  }
  if (lua_type(L, index) != LUA_TTABLE) return false;
  const int n = static_cast<int>(lua_objlen(L, index));
  items.resize(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    lua_rawgeti(L, index, i + 1);
    Operand& item = items[static_cast<size_t>(i)];
    bool ok = true;
    if (want.optional_element && lua_type(L, -1) == LUA_TBOOLEAN && lua_toboolean(L, -1) == 0)
      item = static_cast<Box*>(nullptr);  // false stands for nil inside a list
    else
      ok = read_one(frame, want, lua_gettop(L), Pass::strict, item);
    lua_pop(L, 1);
    if (!ok) return false;
  }
  if (n == 0 && has_keys(L, index)) return false;
  out = join(want.kind, items);
  return true;
}

bool read(Frame& frame, const Want& want, int index, Pass pass, Operand& out) {
  return want.list ? read_list(frame, want, index, out) : read_one(frame, want, index, pass, out);
}

// Whether a list may stand as its elements, one after the other: sizes, and the tensors that an
// operator takes last, as einsum does.
bool gathers(const Frame& frame, const Overload& overload, size_t arg, int index) {
  const Want& want = overload.args[arg];
  if (!want.list || want.sized) return false;
  if (want.kind == Kind::integer) return lua_type(frame.L, index) == LUA_TNUMBER;
  return want.kind == Kind::tensor && arg + 1 == overload.positional &&
         test_box_at(frame.L, index) != nullptr;
}

// The elements from `first` on as one list; returns how many were taken.
int gather(Frame& frame, const Want& want, int first, Operand& out) {
  std::vector<Operand> items;
  int index = first;
  for (Operand item; index <= frame.positional && read_one(frame, want, index, Pass::strict, item);
       ++index)
    items.push_back(std::move(item));
  out = join(want.kind, items);
  return index - first;
}

void set_absent(const Want& want, Operand& out) {
  if (want.kind == Kind::tensor && !want.list)
    out = static_cast<Box*>(nullptr);
  else
    out = want.fallback;
}

std::string shown(Frame& frame, int index) {
  lua_State* L = frame.L;
  if (Box* box = test_box_at(L, index)) return "a tensor " + to_string(type_of(*box));
  switch (lua_type(L, index)) {
    case LUA_TSTRING:
      return fmt::format("the string '{}'", text_at(L, index).substr(0, 40));
    case LUA_TNUMBER:
      return fmt::format("the number {}", lua_tonumber(L, index));
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0 ? "true" : "false";
    default:
      return fmt::format("a {}", luaL_typename(L, index));
  }
}

// The first keyword that the overload does not have, or that was given by position too.
std::string stray_keyword(Frame& frame, const Overload& overload) {
  lua_State* L = frame.L;
  lua_pushnil(L);
  while (lua_next(L, frame.keywords) != 0) {
    lua_pop(L, 1);
    const std::string name(text_at(L, -1));
    size_t index = 0;
    const bool known = overload.find(name, &index) != nullptr;
    if (known && frame.sources[index] == 0) continue;
    lua_pop(L, 1);
    return known ? fmt::format("argument '{}' is given twice", name)
                 : fmt::format("there is no argument '{}'", name);
  }
  return "a keyword is given twice";
}

// Fills `call` if the overload takes the arguments; else says why not when asked to.
bool match(Frame& frame, const Overload& overload, Pass pass, Call& call, std::string* why) {
  lua_State* L = frame.L;
  call.op = &overload.op;
  call.args.resize(overload.args.size());
  frame.sources.assign(overload.args.size(), 0);
  int next = 1, used = 0;
  for (size_t i = 0; i < overload.args.size(); ++i) {
    const Want& want = overload.args[i];
    Operand& out = call.args[i];
    bool given = false;
    if (!want.keyword_only && next <= frame.positional) {
      if (lua_isnil(L, next)) {
        ++next;
      } else if (pass == Pass::gathered && gathers(frame, overload, i, next)) {
        const int taken = gather(frame, want, next, out);
        next += taken;
        given = taken > 0;
      } else if (read(frame, want, next, pass, out)) {
        frame.sources[i] = next++;
        given = true;
      } else {
        if (why != nullptr)
          *why = fmt::format("argument {} '{}' is {}; expected {}", next, want.name,
                             shown(frame, next), want.describe());
        return false;
      }
    }
    if (!given && frame.keywords != 0) {
      lua_pushlstring(L, want.name.data(), want.name.size());
      lua_rawget(L, frame.keywords);
      const int at = lua_gettop(L);
      const bool present = !lua_isnil(L, at);
      given = present && read(frame, want, at, pass, out);
      if (present && !given && why != nullptr)
        *why = fmt::format("argument '{}' is {}; expected {}", want.name, shown(frame, at),
                           want.describe());
      lua_settop(L, at - 1);
      if (present && !given) return false;
      used += given ? 1 : 0;
    }
    if (given) continue;
    if (!want.has_default && !want.optional) {
      if (why != nullptr)
        *why = fmt::format("argument {} '{}' is missing; expected {}", i + 1, want.name,
                           want.describe());
      return false;
    }
    set_absent(want, out);
  }
  while (next <= frame.positional && lua_isnil(L, next)) ++next;
  if (next <= frame.positional) {
    if (why != nullptr)
      *why = fmt::format("{} arguments by position; expected at most {}", frame.positional,
                         overload.positional);
    return false;
  }
  if (used == frame.keyword_count) return true;
  if (why != nullptr) *why = stray_keyword(frame, overload);
  return false;
}

[[noreturn]] void fail_resolve(Frame& frame, const Operator& op) {
  std::vector<const Overload*> offered;
  for (const Overload& overload : op.overloads)
    if (!overload.out || op.overloads.size() == 1) offered.push_back(&overload);
  const std::string place =
      frame.door.scope.module().empty() ? "" : fmt::format(" in '{}'", frame.door.scope.module());
  Call call;
  std::string why;
  if (offered.size() == 1) {
    match(frame, *offered[0], Pass::wrapped, call, &why);
    throw Error(ErrorKind::model,
                fmt::format("[tensor.call] {}{}: {}", offered[0]->full_name, place, why),
                "its schema: " + toString(offered[0]->op.schema()));
  }
  std::string got, list;
  for (int i = 1; i <= frame.positional; ++i) got += (i > 1 ? ", " : "") + shown(frame, i);
  for (const Overload* overload : offered) {
    match(frame, *overload, Pass::wrapped, call, &why);
    list += fmt::format("\n  {}\n    {}", toString(overload->op.schema()), why);
  }
  fail(ErrorKind::model, "[tensor.call] {}{}: no overload takes ({}); expected one of{}", op.name,
       place, got, list);
}

}  // namespace

int memory_format_from_name(std::string_view name) {
  return find_name(kMemoryFormats, name);
}
int layout_from_name(std::string_view name) {
  return find_name(kLayouts, name);
}

Frame::Frame(lua_State* state, Door& door_of_state) : L(state), door(door_of_state) {
  positional = lua_gettop(L);
  if (positional == 0 || lua_type(L, positional) != LUA_TTABLE || lua_objlen(L, positional) > 0)
    return;
  int count = 0;
  lua_pushnil(L);
  while (lua_next(L, positional) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING) {
      lua_settop(L, positional);
      return;
    }
    ++count;
  }
  if (count == 0) return;  // an empty list
  keywords = positional--;
  keyword_count = count;
}

bool Frame::integral() {
  if (integral_ >= 0) return integral_ > 0;
  bool seen = false, all = true;
  const auto look = [&](int index) {
    if (const Box* box = test_box_at(L, index)) {
      const DType dtype = type_of(*box).dtype;
      seen = true;
      all = all && !is_floating(dtype) && !is_complex(dtype);
    }
  };
  for (int i = 1; i <= positional; ++i) look(i);
  if (keywords != 0) {
    lua_pushnil(L);
    while (lua_next(L, keywords) != 0) {
      look(lua_gettop(L));
      lua_pop(L, 1);
    }
  }
  integral_ = (seen ? all : whole_numbers) ? 1 : 0;
  return integral_ > 0;
}

const Overload& resolve(Frame& frame, const Operator& op, Call& call) {
  frame.whole_numbers = op.name.starts_with("aten::arange");
  for (const Pass pass : {Pass::strict, Pass::wrapped, Pass::gathered})
    for (const Overload& overload : op.overloads)
      if (match(frame, overload, pass, call, nullptr)) return overload;
  fail_resolve(frame, op);
}

}  // namespace nns::tensor
