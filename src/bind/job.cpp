// nnscaler._C.job: the schema, and the way from a recipe's table or a YAML text to a complete job.
#include <algorithm>
#include <unordered_set>

#include "bind/bind.h"
#include "job/parse.h"
#include "job/resolve.h"
#include "job/schema.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using job::Value;
using script::check_string;
using script::guarded;
using Kind = Value::Kind;

// Lua values that a Value refers to, by number, in a table at this stack index.
struct Kept {
  int index;
  std::string file;  // of the job, for messages
  int count = 0;
  std::unordered_set<const void*> tables{};  // that were read
  size_t again = 0;                          // values of tables that occur once more

  int keep(lua_State* L, int value) {
    lua_pushvalue(L, value);
    lua_rawseti(L, index, ++count);
    return count;
  }
};

std::string describe_lua(lua_State* L, int index) {
  if (lua_isfunction(L, index)) {
    lua_Debug info;
    lua_pushvalue(L, index);
    lua_getinfo(L, ">S", &info);
    if (info.linedefined <= 0) return "function";
    return fmt::format("function of {}:{}", info.short_src, info.linedefined);
  }
  if (luaL_getmetafield(L, index, "__name") != 0) {
    const std::string name = lua_isstring(L, -1) ? lua_tostring(L, -1) : "object";
    lua_pop(L, 1);
    return name;
  }
  if (lua_istable(L, index)) return "table that is an object";
  return luaL_typename(L, index);
}

enum class Shape { list, map, mixed };

// A list has the keys 1..n, a map only texts; [] counts as map.
Shape shape_of(lua_State* L, int index) {
  size_t numbers = 0;
  bool texts = false;
  bool other = false;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_type(L, -2) == LUA_TNUMBER)
      ++numbers;
    else if (lua_type(L, -2) == LUA_TSTRING)
      texts = true;
    else
      other = true;
    lua_pop(L, 1);
  }
  if (other || (numbers > 0 && (texts || numbers != lua_objlen(L, index)))) return Shape::mixed;
  return numbers > 0 ? Shape::list : Shape::map;
}

Value to_value(lua_State* L, int index, Kept& kept, int depth) {
  luaL_checkstack(L, 6, "table nested too deeply");
  if (depth > job::kMostLevels)
    throw Error(ErrorKind::usage,
                fmt::format("[job.table] nested deeper than {} levels", job::kMostLevels),
                "a table that holds itself needs a metatable to be taken as one thing");
  if (index < 0) index = lua_gettop(L) + index + 1;
  Value out;
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return out;
    case LUA_TBOOLEAN:
      return Value::of_boolean(lua_toboolean(L, index) != 0);
    case LUA_TNUMBER:
      return Value::of_number(lua_tonumber(L, index));
    case LUA_TSTRING:
      return Value::of_text(check_string(L, index));
    default:
      break;
  }
  const bool plain = lua_istable(L, index) && lua_getmetatable(L, index) == 0;
  if (lua_istable(L, index) && !plain) lua_pop(L, 1);
  out.ref = kept.keep(L, index);
  // A table that holds one table twice, and that again, multiplies: only such values are counted.
  if (!kept.tables.insert(lua_topointer(L, index)).second) {
    kept.again += 1 + lua_objlen(L, index);
    job::check_count(kept.again, {kept.file, 0, 0});
  }
  const Shape shape = plain ? shape_of(L, index) : Shape::mixed;
  if (shape == Shape::mixed) {
    out.kind = Kind::opaque;
    out.text = describe_lua(L, index);
    out.callable = lua_isfunction(L, index);
    return out;
  }
  if (shape == Shape::list) {
    out.kind = Kind::list;
    const int n = static_cast<int>(lua_objlen(L, index));
    for (int i = 1; i <= n; ++i) {
      lua_rawgeti(L, index, i);
      out.items.push_back(to_value(L, -1, kept, depth + 1));
      lua_pop(L, 1);
    }
    return out;
  }
  out.kind = Kind::map;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    out.fields.push_back({std::string(lua_tostring(L, -2)), to_value(L, -1, kept, depth + 1)});
    lua_pop(L, 1);
  }
  std::sort(out.fields.begin(), out.fields.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return out;
}

void push_value(lua_State* L, const Value& value, const Kept& kept) {
  luaL_checkstack(L, 4, "table nested too deeply");
  switch (value.kind) {
    case Kind::null:
      return lua_pushnil(L);
    case Kind::boolean:
      return lua_pushboolean(L, value.boolean);
    case Kind::number:
      return lua_pushnumber(L, value.number);
    case Kind::text:
      return script::push_string(L, value.text);
    case Kind::opaque:
      return lua_rawgeti(L, kept.index, value.ref);
    case Kind::list:
      lua_createtable(L, static_cast<int>(value.items.size()), 0);
      for (size_t i = 0; i < value.items.size(); ++i) {
        push_value(L, value.items[i], kept);
        lua_rawseti(L, -2, static_cast<int>(i + 1));
      }
      return;
    case Kind::map:
      // An object of the recipe, a data set with functions say, stays the very table.
      if (value.whole && value.ref > 0) return lua_rawgeti(L, kept.index, value.ref);
      lua_createtable(L, 0, static_cast<int>(value.fields.size()));
      for (const job::Field& f : value.fields) {
        script::push_string(L, f.key);
        push_value(L, f.value, kept);
        lua_rawset(L, -3);
      }
      return;
  }
}

std::vector<std::string> string_list(lua_State* L, int index, const char* key) {
  lua_getfield(L, index, key);
  auto list = strings_at(L, lua_gettop(L));
  lua_pop(L, 1);
  return list;
}

// resolve{ file=, text=, table= | yaml=true, overrides={…}, parameters={…} } → job, its YAML text
int resolve(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_newtable(L);
  const std::string file = script::field_string(L, 1, "file", "");
  Kept kept{2, file};
  const std::string text = script::field_string(L, 1, "text", "");
  Value root;
  if (script::field_boolean(L, 1, "yaml", false)) {
    root = job::parse_yaml(text, file);
  } else {
    const job::Places places =
        text.empty() ? job::Places{{file, 0, 0}, {}} : job::scan_lua(text, file);
    lua_getfield(L, 1, "table");
    root = to_value(L, -1, kept, 0);
    lua_pop(L, 1);
    job::mark_from(root, places);
    if (!root.is(Kind::map))
      throw Error(ErrorKind::usage,
                  fmt::format("[job.table] {}: the recipe returns {}; expected a table of keys",
                              to_string(root.mark), job::describe(root)),
                  "end the recipe with return { model = …, dataset = …, … }");
  }
  for (const std::string& change : string_list(L, 1, "overrides"))
    job::apply(job::parse_override(change), root);
  job::resolve(root, string_list(L, 1, "parameters"));
  push_value(L, root, kept);
  script::push_string(L, job::dump(root));
  return 2;
}

// parse_override(text) → { path=, value=, remove=, spelling= }
int parse_override(lua_State* L) {
  const job::Override change = job::parse_override(check_string(L, 1));
  lua_newtable(L);
  Kept kept{lua_gettop(L), ""};  // nothing opaque comes from a command line
  lua_newtable(L);
  script::push_string(L, change.path);
  lua_setfield(L, -2, "path");
  push_value(L, change.value, kept);
  lua_setfield(L, -2, "value");
  lua_pushboolean(L, change.remove);
  lua_setfield(L, -2, "remove");
  if (change.value.spelled) {
    script::push_string(L, change.value.text);
    lua_setfield(L, -2, "spelling");
  }
  return 1;
}

// nearest(name, candidates) → name or nil
int nearest(lua_State* L) {
  lua_settop(L, 2);
  lua_newtable(L);
  lua_insert(L, 2);
  lua_setfield(L, 2, "names");
  const std::string found = job::nearest(check_string(L, 1), string_list(L, 2, "names"));
  if (found.empty())
    lua_pushnil(L);
  else
    script::push_string(L, found);
  return 1;
}

int keys(lua_State* L) {  // () → list of { path=, type=, default=, unit=, help=, programs= }
  lua_newtable(L);
  int n = 0;
  for (const job::Key& key : job::keys()) {
    lua_createtable(L, 0, 6);
    const std::pair<const char*, std::string> texts[] = {{"path", key.path},
                                                         {"type", job::type_text(key)},
                                                         {"default", key.fallback},
                                                         {"unit", key.unit},
                                                         {"help", key.help}};
    for (const auto& [name, text] : texts) {
      script::push_string(L, text);
      lua_setfield(L, -2, name);
    }
    lua_pushboolean(L, key.programs);
    lua_setfield(L, -2, "programs");
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

int document(lua_State* L) {
  script::push_string(L, job::document());
  return 1;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 8);
  script::set_functions(L, {{"resolve", guarded<resolve>},
                            {"parse_override", guarded<parse_override>},
                            {"nearest", guarded<nearest>},
                            {"keys", guarded<keys>},
                            {"document", guarded<document>}});
  return 1;
}

}  // namespace

void open_job(lua_State* L) {
  script::preload(L, "nnscaler._C.job", guarded<open>);
}

}  // namespace nns::bind
