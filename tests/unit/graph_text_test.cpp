// The reader of graphs written as text gives back what was written.
#include <catch2/catch.hpp>

#include "support/graph_text.h"
#include "support/models.h"
#include "support/operator_cases.h"

using namespace nns;
using namespace nns::test;

TEST_CASE("a graph read from its text is the graph") {
  std::vector<GraphPtr> graphs{perceptrons(2), transformer(1), convolutions(), linears(),
                               perceptrons(1, false)};
  for (const OperatorCase& c : operator_cases())
    if (c.lines.find("values=") == std::string::npos)  // elements of constants are not in the text
      graphs.push_back(graph_of(c));
  for (const GraphPtr& graph : graphs) {
    const std::string text = graph::to_text(*graph, false);
    INFO(text);
    const graph::Graph again = read_graph(text);
    CHECK(graph::to_text(again, false) == text);
    CHECK(graph::exact_hash(again) == graph::exact_hash(*graph));
    CHECK(graph::structure_hash(again) == graph::structure_hash(*graph));
  }
}

TEST_CASE("what is not a graph is shown") {
  CHECK_THROWS_WITH(read_graph("graph \"G\" training\n%y = aten::relu(self=%x)\n"),
                    Catch::Contains("unknown %x"));
  CHECK_THROWS_WITH(read_graph("graph \"G\" training\ninput %x \"x\": float65[2]\n"),
                    Catch::Contains("a dtype"));
}
