// The Lua userdata "nnscaler.Graph": an immutable graph::Graph.
#pragma once

#include <memory>

#include "graph/graph.h"

struct lua_State;

namespace nns::bind {

inline constexpr const char* kGraphType = "nnscaler.Graph";

void push_graph(lua_State* L, graph::Graph graph);
void push_graph(lua_State* L, std::shared_ptr<const graph::Graph> graph);
// Returns the graph at `index`, or raises an argument error.
const graph::Graph& check_graph(lua_State* L, int index);
std::shared_ptr<const graph::Graph> share_graph(lua_State* L, int index);

}  // namespace nns::bind
