// Skeletons: what is projected for a rank is what it lowers alone; which devices share a lowering;
// numbers of a rank inside of instructions.
#include "lower/skeleton.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "codegen/lua.h"
#include "plan/builder.h"

using namespace nns;
using namespace nns::lower;
using graph::Role;
using graph::ValueRef;

namespace {

// indices → embedding [20, 8] → linear [10, 8] → linear [8, 10] → dropout → sum
std::shared_ptr<const graph::Graph> net() {
  auto g = std::make_shared<graph::Graph>();
  g->name = "Net";
  const auto value = [&](Shape shape, DType dtype, Role role, std::string name, int producer) {
    const int id = static_cast<int>(g->values.size());
    g->values.push_back({id,
                         {std::move(shape), dtype},
                         role,
                         dtype == DType::f64 && role != Role::input,
                         std::move(name),
                         producer,
                         {}});
    return id;
  };
  const auto call = [&](std::string op, std::string module, std::vector<graph::NamedArg> args,
                        Shape shape) {
    const int id = static_cast<int>(g->nodes.size());
    graph::Node node;
    node.id = id;
    node.op = std::move(op);
    node.module = std::move(module);
    node.args = std::move(args);
    node.outputs = {value(std::move(shape), DType::f64, Role::activation, "", id)};
    g->nodes.push_back(node);
    return node.outputs[0];
  };
  const auto weight = [&](std::string name, Shape shape) {
    g->parameters.push_back(
        value(std::move(shape), DType::f64, Role::parameter, std::move(name), -1));
    return ValueRef{g->parameters.back()};
  };
  g->inputs = {value({4}, DType::i64, Role::input, "x", -1)};
  int x = call("aten::embedding", "embed",
               {{"weight", weight("embed.weight", {20, 8})},
                {"indices", ValueRef{g->inputs[0]}},
                {"padding_idx", int64_t{-1}},
                {"scale_grad_by_freq", false},
                {"sparse", false}},
               {4, 8});
  for (const auto& [module, to] : {std::pair<std::string, int64_t>{"fc", 10}, {"proj", 8}}) {
    const int64_t from = g->value({x}).type.shape[1];
    x = call(
        "aten::linear", module,
        {{"input", ValueRef{x}}, {"weight", weight(module + ".weight", {to, from})}, {"bias", {}}},
        {4, to});
  }
  x = call("aten::dropout", "drop", {{"input", ValueRef{x}}, {"p", 0.5}, {"train", true}}, {4, 8});
  x = call("aten::sum", "", {{"self", ValueRef{x}}, {"dtype", {}}}, {});
  g->outputs.resize(1);
  g->outputs[0].node = ValueRef{x};
  return g;
}

// Rows of the table, rows of fc, columns of proj, and of the draws the rows; over the first mesh
// dimension of `devices`.
std::shared_ptr<const plan::Plan> cut(const std::shared_ptr<const graph::Graph>& g, int parts,
                                      int units) {
  plan::Builder b(g, parts, parts * units);
  b.partition(0, 0, 0, parts);
  b.partition(1, 1, 0, parts, true);
  b.partition(2, 0, 1, parts, true);
  b.partition(3, 0, 0, parts);
  b.replicate(4, parts);
  return std::make_shared<const plan::Plan>(b.finish("hand"));
}

// Lowerings of a skeleton whose programs are those that ranks make alone.
size_t classes_of(const std::shared_ptr<const graph::Graph>& g,
                  const std::shared_ptr<const plan::Plan>& plan) {
  Options options;
  options.plan = plan;
  const Skeleton skeleton(g, options);
  for (options.rank = plan->runtime_ngpus - 1; options.rank >= 0; --options.rank) {
    INFO("rank " << options.rank);
    const Program shared = skeleton.project(options.rank).program;
    const Program alone = lower::lower(*g, options).program;
    CHECK(to_text(shared) == to_text(alone));
    CHECK(to_json(shared) == to_json(alone));
    CHECK(codegen::to_lua(shared) == codegen::to_lua(alone));
    for (size_t i = 0; i < alone.shares.size(); ++i) {
      CHECK(shared.shares[i].reduce == alone.shares[i].reduce);
      CHECK(shared.shares[i].holders == alone.shares[i].holders);
    }
  }
  CHECK(skeleton.check());
  CHECK(skeleton.memory(0).peak == memory(skeleton.project(0).program).peak);
  return skeleton.classes().size();
}

}  // namespace

TEST_CASE("devices with equal parts share one lowering") {
  const auto g = net();
  CHECK(classes_of(g, cut(g, 2, 1)) == 1);
  CHECK(classes_of(g, cut(g, 2, 3)) == 1);
}

TEST_CASE("devices with parts of other sizes do not") {
  const auto g = net();
  CHECK(classes_of(g, cut(g, 4, 2)) == 2);  // fc has 3, 3, 2 and 2 rows
}

TEST_CASE("shards of other sizes are classes of their own, over scale units too") {
  const auto g = net();
  plan::Builder b(g, 1, 6);
  for (int node = 0; node < 5; ++node) b.replicate(node, 1);
  plan::Plan plan = b.finish("hand");
  plan.zero.level = plan::Zero::weights;
  // Of 20, 10 and 8 elements, cut where least is padded: 4 of 6 ranks are alike, then 2.
  const size_t classes = classes_of(g, std::make_shared<const plan::Plan>(plan));
  CHECK(classes > 1);
  CHECK(classes < 6);
}

TEST_CASE("numbers of a rank are filled in, and nothing is computed from them") {
  Peers peers({2, 3}, true);
  const Shape group = peers.ranks([](int device) { return Shape{device, device + 2}; });
  const int64_t start = peers.number([](int device) { return int64_t{10} * device; });
  const Shape place = peers.numbers([](int device) { return Shape{7, device}; });
  const Shape moves = peers.moves(1, [](int device) { return Shape{device, 5, 6}; });
  CHECK(peers.number([](int) { return int64_t{4}; }) == 4);
  CHECK(peers.ranks([](int device) { return Shape{device, device + 2}; }) == group);
  CHECK(place[0] == 7);

  Program program;
  program.segments.resize(1);
  Instr instr;
  instr.op = "comm::x";
  instr.args = {{"group", group}, {"start", start}, {"place", place}, {"moves", moves}};
  program.segments[0].instrs = {instr};
  fill(program, peers.holes(), 3, 8);
  const auto& args = program.segments[0].instrs[0].args;
  CHECK(std::get<Shape>(args[0].value) == Shape{11, 13});
  CHECK(std::get<int64_t>(args[1].value) == 30);
  CHECK(std::get<Shape>(args[2].value) == Shape{7, 3});
  CHECK(std::get<Shape>(args[3].value) == Shape{11, 5, 6});

  for (const int64_t computed : {start + 1, -start, 2 * start}) {
    instr.args = {{"start", computed}};
    program.segments[0].instrs = {instr};
    CHECK_THROWS_AS(fill(program, peers.holes(), 3, 8), Error);
  }
}

TEST_CASE("devices for which the code would go another way leave") {
  Peers peers({4, 5, 6}, false);
  CHECK(peers.alike([](int device) { return device < 6; }));
  CHECK(peers.devices() == std::vector<int>{4, 5});
  CHECK(peers.number([](int device) { return int64_t{device < 6 ? 1 : 2}; }) == 1);
}

TEST_CASE("equal numbers behind different marks are found") {
  Peers peers({0, 1}, false);
  const int64_t a = peers.number([](int device) { return int64_t{device}; });
  const int64_t b = peers.number([](int device) { return int64_t{2} * device; });
  Program program;
  program.segments.resize(1);
  for (const int64_t x : {a, b, int64_t{5}}) {
    Instr instr;
    instr.op = "aten::narrow";
    instr.args = {{"start", x}};
    program.segments[0].instrs.push_back(instr);
  }
  const Pattern pattern = pattern_of(program, peers.holes());
  CHECK(pattern.by_device[0] != pattern.marked);  // 0 and 0
  CHECK(pattern.by_device[1] == pattern.marked);  // 1 and 2
}
