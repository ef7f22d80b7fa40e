// Graphs written as text: what graph::to_text(graph, false) prints, and less where the rest
// follows.
//
//   graph "MLP" training
//     input     %x "x": float64[4, 3]
//     parameter %w "fc.weight": float64[5, 3] grad
//     constant  %m "": bool[2] values=1 0
//     %h = aten::linear(input=%x, weight=%w)  -- fc
//     output    %h
//
// Values have names or numbers. The types of results may be left out (they are inferred), as may
// arguments that are nil, modules and ordinals (`-- fc` and `-- fc#0` are the same). Lines that
// start with # are comments.
#pragma once

#include "graph/graph.h"

namespace nns::test {

// Throws std::runtime_error that shows the line it cannot read; the graph is verified.
graph::Graph read_graph(std::string_view text);

// Adds a call to a graph, with inferred types, and returns its results.
std::vector<int> add_call(graph::Graph& graph, const std::string& op,
                          std::vector<graph::NamedArg> args, const std::string& module = {},
                          graph::Context context = {});

}  // namespace nns::test
