// The schemas of LibTorch's registry, for the file that the planner core knows them by
// (src/operators/schemas.inc).
#include "trace/schemas.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <lua.hpp>
#include <sstream>

#include "script/state.h"

namespace nns::trace {
namespace {

// Whether a graph may hold calls of it: those that fill a tensor given as `out` or walk lists of
// tensors have a form that returns its results, and names of dimensions and open lists of arguments
// are not supported.
bool is_listed(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (!name.starts_with("aten::") && !name.starts_with("nnscaler::")) return false;
  if (name.starts_with("aten::_foreach_") || schema.is_vararg()) return false;
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) {
    const bool out = a.kwarg_only() && a.alias_info() != nullptr && a.alias_info()->isWrite();
    return out || a.type()->annotation_str().find("Dimname") != std::string::npos;
  });
}

int schemas(lua_State* L) {  // () → list of texts, sorted
  std::vector<std::string> lines;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || !is_listed(handle->schema())) continue;
    std::ostringstream text;
    text << handle->schema();
    lines.push_back(text.str());
  }
  std::sort(lines.begin(), lines.end());
  lua_createtable(L, static_cast<int>(lines.size()), 0);
  for (size_t i = 0; i < lines.size(); ++i) {
    script::push_string(L, lines[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

}  // namespace

void add_schemas(lua_State* L) {
  script::set_functions(L, {{"schemas", script::guarded<schemas>}});
}

}  // namespace nns::trace
