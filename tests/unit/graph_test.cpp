// Graph: text, JSON round trip and hardening, hashes, verifier.
#include "graph/graph.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"

using namespace nns;
using namespace nns::graph;
using Catch::Contains;

namespace {

// y = linear(x, w, nil) under module "fc"; loss = sum(y); buffer n takes n + 1.
Graph small_graph() {
  Graph g;
  g.name = "Net";
  const auto value = [&g](Shape shape, DType dtype, Role role, std::string name, int producer) {
    const int id = static_cast<int>(g.values.size());
    g.values.push_back({id, {std::move(shape), dtype}, role, false, std::move(name), producer, {}});
    return id;
  };
  value({2, 3}, DType::f32, Role::input, "x", -1);
  value({4, 3}, DType::f32, Role::parameter, "fc.weight", -1);
  value({}, DType::i64, Role::buffer, "n", -1);
  value({2, 4}, DType::f32, Role::activation, "", 0);
  value({}, DType::f32, Role::activation, "", 1);
  value({}, DType::i64, Role::activation, "", 2);
  for (const int id : {1, 3, 4}) g.values[static_cast<size_t>(id)].requires_grad = true;
  g.inputs = {0};
  g.parameters = {1};
  g.buffers = {2};
  g.nodes = {
      {0,
       "aten::linear",
       {{"input", ValueRef{0}}, {"weight", ValueRef{1}}, {"bias", {}}},
       {3},
       "fc",
       0,
       {"/home/me/net.lua", 7},
       "return self.fc(x)",
       {}},
      {1, "aten::sum", {{"self", ValueRef{3}}, {"dtype", {}}}, {4}, "", 0, {"net.lua", 8}, "", {}},
      {2,
       "aten::add.Scalar",
       {{"self", ValueRef{2}}, {"other", int64_t{1}}, {"alpha", int64_t{1}}},
       {5},
       "",
       0,
       {"net.lua", 9},
       "",
       {false, "bfloat16", 2}}};
  g.outputs = {{ValueRef{4}}, {std::vector<std::pair<std::string, Nest>>{{"tokens", {2.0}}}}};
  g.buffer_updates = {{2, 5}};
  g.aliases = {{"head.weight", "fc.weight"}};
  return g;
}

std::string fault_of(const Graph& g) {
  return find_fault(g).value_or("none");
}

std::string refusal(const std::string& text) {
  try {
    from_json(text);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::state);
    return e.message();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("the text form of a graph reads line by line") {
  CHECK(
      to_text(small_graph()) ==
      "graph \"Net\" training\n"
      "  input     %0 \"x\": float32[2, 3]\n"
      "  parameter %1 \"fc.weight\": float32[4, 3] grad\n"
      "  buffer    %2 \"n\": int64[]\n"
      "  alias     \"head.weight\" = \"fc.weight\"\n"
      "  %3: float32[2, 4] grad = aten::linear(input=%0, weight=%1, bias=nil)  -- fc#0 net.lua:7\n"
      "  %4: float32[] grad = aten::sum(self=%3, dtype=nil)  -- .#0 net.lua:8\n"
      "  %5: int64[] = aten::add.Scalar(self=%2, other=1, alpha=1)"
      "  -- .#0 no_grad autocast=bfloat16 recompute=2 net.lua:9\n"
      "  update    %2 = %5\n"
      "  output    %4\n"
      "  output    { \"tokens\" = 2 }\n");
}

TEST_CASE("reals are told from integers in the text form") {
  Graph g = small_graph();
  g.nodes[2].args[1].value = 1.0;
  CHECK_THAT(to_text(g), Contains("other=1.0,"));
  g.nodes[2].args[1].value = 1e-5;
  CHECK_THAT(to_text(g), Contains("other=1e-05,"));
  g.nodes[2].args[1].value = -std::numeric_limits<double>::infinity();
  CHECK_THAT(to_text(g), Contains("other=-inf,"));
}

TEST_CASE("inputs_of keeps argument order, repeats and skips nil") {
  Node n;
  n.args = {{"a", ValueRef{4}}, {"b", ValueRef{}}, {"c", std::vector<ValueRef>{{2}, {-1}, {4}}}};
  CHECK(inputs_of(n) == std::vector<int>{4, 2, 4});
}

TEST_CASE("a graph survives the way through JSON") {
  const Graph g = small_graph();
  const std::string json = to_json(g);
  const Graph back = from_json(json);
  CHECK(to_json(back) == json);
  CHECK(to_text(back) == to_text(g));
  CHECK(back.nodes[0].source_text == "return self.fc(x)");
  CHECK(back.nodes[0].loc.file == "/home/me/net.lua");
}

TEST_CASE("every kind of argument survives the way through JSON") {
  rc::check([](int64_t i, double x, bool b, const std::string& bytes, std::vector<int64_t> ints,
               std::vector<double> reals, std::vector<bool> bools) {
    std::string text;
    for (const char c : bytes) text += static_cast<char>(c & 0x7f);
    Graph g = small_graph();
    g.nodes[0].args = {{"a", i},
                       {"b", x},
                       {"c", b},
                       {"d", text},
                       {"e", ints},
                       {"f", reals},
                       {"g", bools},
                       {"h", DType::bf16},
                       {"i", {}},
                       {"j", Symbol{"cpu"}},
                       {"k", std::vector<ValueRef>{{0}, {-1}}}};
    const Graph back = from_json(to_json(g));
    for (size_t k = 0; k < g.nodes[0].args.size(); ++k)
      RC_ASSERT(back.nodes[0].args[k].value == g.nodes[0].args[k].value);
  });
  Graph g = small_graph();
  g.nodes[0].args = {{"a", std::numeric_limits<double>::infinity()}, {"b", int64_t{INT64_MIN}}};
  const Graph back = from_json(to_json(g));
  CHECK(back.nodes[0].args[0].value == g.nodes[0].args[0].value);
  CHECK(back.nodes[0].args[1].value == g.nodes[0].args[1].value);
}

TEST_CASE("a constant carries its elements") {
  Graph g = small_graph();
  g.values.push_back(
      {6, {{2}, DType::u8}, Role::constant, false, "", -1, std::string("\xff\0", 2)});
  CHECK(fault_of(g) == "none");
  CHECK(from_json(to_json(g)).values[6].data == g.values[6].data);
  Graph other = g;
  other.values[6].data[1] = 1;
  CHECK(exact_hash(other) != exact_hash(g));
  other.values[6].data += 'x';
  CHECK(fault_of(other) == "constant %6 has 3 bytes; its type uint8[2] takes 2");
}

TEST_CASE("damaged JSON is refused with the place and what was expected") {
  const std::string good = to_json(small_graph());
  CHECK_THAT(refusal("{"), Contains("[graph.from_json] not JSON"));
  CHECK_THAT(refusal("[]"), Contains("graph: []; expected an object"));
  CHECK_THAT(refusal(std::string(5000, '[')), Contains("nested deeper than 64 levels"));
  CHECK_THAT(refusal(replaced(good, "\"version\": 1", "\"version\": 9")),
             Contains("version 9 is newer than this program's 1"));
  CHECK_THAT(refusal(replaced(good, "nnscaler graph", "other")), Contains("graph.format"));
  CHECK_THAT(refusal(replaced(good, "\"training\": true", "\"training\": 1")),
             Contains("graph.training: 1; expected true or false"));
  CHECK_THAT(refusal(replaced(good, "\"training\": true", "\"training\": true, \"extra\": 1")),
             Contains("expected 12 fields"));
  CHECK_THAT(refusal(replaced(good, "\"float32\"", "\"float33\"")),
             Contains("graph.values[0].dtype: \"float33\"; expected the name of a dtype"));
  CHECK_THAT(refusal(replaced(good, "\"ordinal\": 0", "\"ordinal\": 99999999999")),
             Contains("graph.nodes[0].ordinal"));
  CHECK_THAT(refusal(replaced(good, "\"ordinal\": 0", "\"ordinal\": 1")),
             Contains("node 0 (aten::linear) in 'fc' has ordinal 1; expected 0"));
}

TEST_CASE("cutting or changing bytes of the JSON form never crashes the reader") {
  const std::string good = to_json(small_graph());
  rc::check([&good](size_t at, char byte) {
    std::string text = good;
    text[at % text.size()] = byte;
    for (const std::string& t : {text, good.substr(0, at % good.size())}) try {
        from_json(t);
      } catch (const Error& e) {
        RC_ASSERT(e.kind() == ErrorKind::state);
      }
  });
}

TEST_CASE("the exact hash sees sizes, the structure hash does not, neither sees places") {
  const Graph g = small_graph();
  Graph moved = g;
  moved.nodes[0].loc = {"other.lua", 99};
  moved.nodes[0].source_text = "x";
  CHECK(exact_hash(moved) == exact_hash(g));
  CHECK(structure_hash(moved) == structure_hash(g));

  Graph larger = g;
  larger.values[0].type.shape = {8, 3};
  larger.values[3].type.shape = {8, 4};
  CHECK(exact_hash(larger) != exact_hash(g));
  CHECK(structure_hash(larger) == structure_hash(g));

  Graph renamed = g;
  renamed.nodes[0].module = "fc2";
  CHECK(structure_hash(renamed) != structure_hash(g));
  Graph other_op = g;
  other_op.nodes[1].op = "aten::mean";
  CHECK(structure_hash(other_op) != structure_hash(g));
  Graph rewired = g;
  rewired.nodes[1].args[0].value = ValueRef{0};
  CHECK(structure_hash(rewired) != structure_hash(g));

  Graph other_arg = g;
  other_arg.nodes[2].args[1].value = int64_t{2};
  CHECK(exact_hash(other_arg) != exact_hash(g));
  other_arg.nodes[2].args[1].value = 1.0;
  CHECK(exact_hash(other_arg) != exact_hash(g));
  Graph context = g;
  context.nodes[0].context.grad_enabled = false;
  CHECK(exact_hash(context) != exact_hash(g));
}

TEST_CASE("the verifier names the broken rule") {
  CHECK(fault_of(small_graph()) == "none");
  const auto broken = [](auto change) {
    Graph g = small_graph();
    change(g);
    return fault_of(g);
  };
  CHECK(broken([](Graph& g) { g.values[1].id = 7; }) == "value at position 1 has id 7");
  CHECK(broken([](Graph& g) { g.values[0].type.shape = {-1}; }) == "value %0 has shape [-1]");
  CHECK(broken([](Graph& g) { g.inputs.clear(); }) == "input %0 is not in its list");
  CHECK(broken([](Graph& g) { g.inputs = {1}; }) ==
        "value %1 is listed as input but has role parameter");
  CHECK(broken([](Graph& g) { g.inputs = {0, 0}; }) == "value %0 is listed twice");
  CHECK(broken([](Graph& g) { g.values[1].name = "n"; }) == "two tensors are named 'n'");
  CHECK(broken([](Graph& g) { g.aliases[0].second = "w"; }) ==
        "alias 'head.weight' of unknown 'w'");
  CHECK(broken([](Graph& g) { g.nodes[0].args[0].value = ValueRef{4}; }) ==
        "node 0 (aten::linear) reads value %4 before its definition");
  CHECK(broken([](Graph& g) { g.nodes[0].args[0].value = ValueRef{44}; }) ==
        "node 0 (aten::linear) reads value %44, which is not there");
  CHECK(broken([](Graph& g) { g.nodes[1].outputs = {3}; }) ==
        "node 1 (aten::sum) defines value %3, whose producer is 0");
  CHECK(broken([](Graph& g) { g.nodes[0].outputs = {3, 3}; }) ==
        "node 0 (aten::linear) defines value %3 a second time");
  CHECK(broken([](Graph& g) { g.nodes[1].outputs.clear(); }) ==
        "value %4 claims producer 1, which does not define it");
  CHECK(broken([](Graph& g) { g.nodes[1].args[1].name = "self"; }) ==
        "node 1 (aten::sum) has argument 'self' twice or without name");
  CHECK(broken([](Graph& g) { g.nodes[1].op = "sum"; }) == "node 1 (sum) has no namespace");
  CHECK(broken([](Graph& g) { g.outputs[0] = {ValueRef{9}}; }) ==
        "output names value %9, which is not there");
  CHECK(broken([](Graph& g) { g.buffer_updates[0].second = 4; }) ==
        "buffer %2 of type int64[] takes %4 of type float32[]");
  Graph g = small_graph();
  g.nodes[0].ordinal = 3;
  CHECK_THROWS_WITH(verify(g), Contains("[graph.verify] Net: node 0"));
}
