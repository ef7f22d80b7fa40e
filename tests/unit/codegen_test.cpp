// Generated text against the Program that it spells.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "codegen/lua.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;

namespace {

// Fields of `s` that the functions of blocks write, by the segment in the function's name.
std::map<std::string, std::set<std::string>> stored_fields(const std::string& text) {
  std::map<std::string, std::set<std::string>> out;
  std::istringstream lines(text);
  std::string segment;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("function block.")) {
      for (const char* name : {"forward", "backward", "weight"})
        if (line.find(std::string("_") + name) != std::string::npos) segment = name;
    } else if (line == "end") {
      segment.clear();
    }
    const size_t equals = line.find(" = ");
    if (segment.empty() || equals == std::string::npos) continue;
    const std::string left = line.substr(0, equals);
    for (size_t at = left.find("s."); at != std::string::npos; at = left.find("s.", at + 1))
      if (at == 0 || left[at - 1] == ' ')
        out[segment].insert(left.substr(at, left.find_first_of(", ", at) - at));
  }
  return out;
}

// Two stages of recomputed blocks whose weight gradients are apart: forward and backward both keep
// something in a block's table.
Programs recomputed() {
  const GraphPtr graph = alike(6);
  plan::Builder b(graph, 2, 2);
  int first = -1;
  for (const graph::Node& node : graph->nodes)
    if (first < 0 && node.module.starts_with("h.3")) first = node.id;
  b.stage({first}, {{0}, {1}});
  for (int i = 0; i < 6; ++i) {
    std::vector<int> nodes;
    for (const graph::Node& node : graph->nodes)
      if (node.module.starts_with("h." + std::to_string(i))) nodes.push_back(node.id);
    b.recompute(nodes);
  }
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  b.schedule("zb_h1", 4, 1);
  return lower_all(graph, std::make_shared<const plan::Plan>(b.finish("hand")));
}

}  // namespace

TEST_CASE("what two segments keep in a block's table has two names") {
  for (const auto& lowered : recomputed().ranks) {
    auto fields = stored_fields(codegen::to_lua(lowered.program));
    CAPTURE(lowered.program.rank);
    REQUIRE(!fields["forward"].empty());
    REQUIRE(!fields["backward"].empty());
    for (const std::string& field : fields["backward"]) {
      INFO(field);
      CHECK_FALSE(fields["forward"].contains(field));
    }
  }
}
