// Programs of plans, run by the tests' interpreter, against one device: losses, all gradients,
// buffers, results; and what memory and traffic say of them against what was measured.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "codegen/lua.h"
#include "lower/check_ranks.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;
using plan::Builder;

namespace {

std::shared_ptr<const plan::Plan> finished(Builder& b) {
  return std::make_shared<const plan::Plan>(b.finish("hand"));
}

// Runs a plan and compares; returns its Programs.
Programs check_plan(const GraphPtr& graph, std::shared_ptr<const plan::Plan> plan) {
  const size_t micros = static_cast<size_t>(plan->units() * plan->micro_batches);
  const Inputs inputs = random_inputs(*graph, micros, 5);
  const Outcome want = run(lower_all(graph), inputs);
  Programs programs = lower_all(graph, plan);
  const Outcome got = run(programs, inputs);
  CHECK(difference(want, got) == "");
  CHECK(miscounted(programs, got) == "");
  CHECK(unmeasured(programs, got) == "");
  std::vector<const lower::Program*> all;
  for (const auto& lowered : programs.ranks) all.push_back(&lowered.program);
  CHECK_NOTHROW(lower::check_ranks(all, *plan));
  return programs;
}

void replicate_rest(Builder& b, int parts) {
  for (const graph::Node& node : b.graph().nodes)
    if (!b.planned(node.id)) b.replicate(node.id, parts);
}

int calls(const lower::Program& program, const std::string& op) {
  int n = 0;
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs) n += instr.op == op ? 1 : 0;
  return n;
}

// Megatron's cuts of the blocks: rows of fc, columns of proj.
void cut_blocks(Builder& b, int parts) {
  for (const graph::Node& node : b.graph().nodes) {
    if (node.op != "aten::linear") continue;
    if (node.module.ends_with(".fc")) b.partition(node.id, 1, 0, parts);
    if (node.module.ends_with(".proj")) b.partition(node.id, 1, 1, parts);
  }
  for (const graph::Node& node : b.graph().nodes)
    if (node.op == "aten::gelu") b.partition(node.id, 0, 2, parts);
}

// Nodes of a list of blocks by the stage that each belongs to: `first` are the first blocks.
std::vector<int> first_nodes(const graph::Graph& graph, const std::vector<int>& blocks) {
  std::vector<int> out;
  for (int block : blocks)
    for (const graph::Node& node : graph.nodes)
      if (node.module.starts_with("h." + std::to_string(block) + ".")) {
        out.push_back(node.id);
        break;
      }
  return out;
}

}  // namespace

TEST_CASE("what a rank has to adapt is counted over all its stages") {
  const auto graph = perceptrons(2);
  Builder b(graph, 2, 2);
  cut_blocks(b, 2);
  replicate_rest(b, 2);
  const Programs cut = check_plan(graph, std::make_shared<const plan::Plan>(b.finish("cut")));
  CHECK(lower::lower(*graph).adapters.all == 0);
  // Of each block the sums of proj's results and of fc's input gradients at the least.
  for (const auto& rank : cut.ranks) CHECK(rank.adapters.all >= 2);
}

TEST_CASE("scale units add up what one device computes") {
  for (const GraphPtr& graph : {perceptrons(3), transformer(2), oddities()}) {
    Builder b(graph, 1, 3);
    replicate_rest(b, 1);
    b.schedule("1f1b", 2, 1);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("scale units put running statistics together") {
  const GraphPtr graph = convolutions();
  Builder b(graph, 1, 2);
  replicate_rest(b, 1);
  b.schedule("1f1b", 2, 1);
  check_plan(graph, finished(b));
}

TEST_CASE("blocks cut by rows, then by columns") {
  for (int parts : {2, 3, 4}) {
    const GraphPtr graph = perceptrons(3);
    Builder b(graph, parts, 2 * parts);
    cut_blocks(b, parts);
    replicate_rest(b, parts);
    const Programs programs = check_plan(graph, finished(b));
    // One sum of activations a block forward, one backward.
    CHECK(calls(programs.ranks[0].program, "comm::all_reduce") == 6);
    CHECK(programs.ranks[0].program.segments[0].blocks.size() == 3);
  }
}

TEST_CASE("weights rest in shards and are gathered for use") {
  for (const GraphPtr& graph : {perceptrons(2), convolutions(), oddities()}) {
    for (int units : {2, 3}) {
      Builder b(graph, 1, units);
      replicate_rest(b, 1);
      b.zero(plan::Zero::weights);
      const Programs programs = check_plan(graph, finished(b));
      for (const lower::Share& share : programs.ranks[0].program.shares)
        CHECK(share.reduce.empty());
    }
  }
}

TEST_CASE("slots and gradients rest in shards") {
  for (const GraphPtr& graph : {perceptrons(2), convolutions(), oddities()})
    for (int units : {2, 3, 4})
      for (int level : {1, 2, 3})
        for (const bool scatter : {false, true}) {
          Builder b(graph, 1, units);
          replicate_rest(b, 1);
          b.zero(level);
          if (scatter) b.zero_scatter();
          if (units == 4) b.zero_groups(2);
          const Programs programs = check_plan(graph, finished(b));
          for (const auto& lowered : programs.ranks)
            for (const lower::Share& share : lowered.program.shares)
              CHECK((share.over.empty() ||
                     share.over.size() == (units == 4 ? 2U : static_cast<unsigned>(units))));
        }
}

TEST_CASE("shards of weights that are cut for use") {
  const GraphPtr graph = perceptrons(2);
  for (int level : {1, 2, 3}) {
    Builder b(graph, 2, 4);
    cut_blocks(b, 2);
    replicate_rest(b, 2);
    b.zero(level);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("pipelines of every schedule") {
  for (const bool tall : {false, true})
    for (const char* schedule : {"gpipe", "1f1b", "zb_h1", "chimera"}) {
      INFO(schedule);
      const GraphPtr graph = tall ? transformer(4) : perceptrons(4);
      Builder b(graph, 2, 4);
      b.stage(first_nodes(*graph, {2}), {{0}, {1}});
      replicate_rest(b, 1);
      b.schedule(schedule, 4, 1);
      check_plan(graph, finished(b));
    }
}

TEST_CASE("several stages a device") {
  for (const char* schedule : {"1f1b_interleaved", "zbv"}) {
    INFO(schedule);
    const bool v = std::string(schedule) == "zbv";
    const GraphPtr graph = perceptrons(4);
    Builder b(graph, 2, 2);
    b.stage(first_nodes(*graph, {1, 2, 3}), {{0}, {1}, {v ? 1 : 0}, {v ? 0 : 1}});
    replicate_rest(b, 1);
    b.schedule(schedule, 4, 2);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("stages that are cut") {
  for (const char* schedule : {"1f1b", "zb_h1", "chimera"}) {
    INFO(schedule);
    const GraphPtr graph = perceptrons(4);
    Builder b(graph, 4, 4);
    b.stage(first_nodes(*graph, {2}), {{0, 1}, {2, 3}});
    cut_blocks(b, 2);
    replicate_rest(b, 2);
    b.schedule(schedule, 2, 1);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("a part that a device would run twice alike runs once") {
  const GraphPtr graph = linears();
  const auto lowered = [&](int copies) {
    Builder b(graph, 2, 2);
    b.partition(0, 0, 0, 2);
    if (copies > 1) {
      b.replicate(0, copies);
      b.assign(0, {0, 0, 1, 1});
    }
    replicate_rest(b, 2);
    return check_plan(graph, finished(b));
  };
  const auto once = lowered(1), twice = lowered(2);
  const auto calls = [](const Programs& of) {
    return of.ranks[0].program.segments[0].instrs.size();
  };
  CHECK(calls(once) == calls(twice));
}

TEST_CASE("stages that other stages share devices with") {
  // The embedding and the head lie on both devices, the blocks between on one each.
  const GraphPtr graph = linears();
  Builder b(graph, 2, 2);
  b.stage({1, 3}, {{0, 1}, {0}, {1}});
  b.partition(0, 1, 0, 2);
  for (int node : {1, 2}) b.replicate(node, 1);
  for (int node : {3, 4, 5}) b.replicate(node, 1);
  b.schedule(
      "custom", 2, 1,
      {"F0:0 F1:0 F0:1 F1:1 B1:0 B0:0 B1:1 B0:1", "F0:0 F0:1 F2:0 B2:0 F2:1 B2:1 B0:0 B0:1"});
  check_plan(graph, finished(b));
}

TEST_CASE("blocks that are computed again keep their inputs alone") {
  const GraphPtr graph = transformer(3);
  const auto lowered = [&](bool again) {
    Builder b(graph, 1, 2);
    for (int i = 0; again && i < 3; ++i) {
      std::vector<int> nodes;
      for (const graph::Node& node : graph->nodes)
        if (node.module.starts_with("h." + std::to_string(i))) nodes.push_back(node.id);
      b.recompute(nodes);
    }
    replicate_rest(b, 1);
    return check_plan(graph, finished(b));
  };
  const auto plain = lower::memory(lowered(false).ranks[0].program);
  const auto again = lower::memory(lowered(true).ranks[0].program);
  CHECK(again.saved < plain.saved / 2);
  CHECK(again.peak < plain.peak);
}

TEST_CASE("weight gradients apart from recomputed blocks have fields of their own") {
  const GraphPtr graph = perceptrons(6);
  Builder b(graph, 2, 2);
  b.stage(first_nodes(*graph, {3}), {{0}, {1}});
  for (int i = 0; i < 6; ++i) {
    std::vector<int> nodes;
    for (const graph::Node& node : graph->nodes)
      if (node.module.starts_with("h." + std::to_string(i))) nodes.push_back(node.id);
    b.recompute(nodes);
  }
  replicate_rest(b, 1);
  b.schedule("zb_h1", 4, 1);
  check_plan(graph, finished(b));
}

TEST_CASE("parts that differ") {
  const GraphPtr graph = linears();
  SECTION("by one") {
    Builder b(graph, 3, 3);
    for (int i : {0, 2}) b.partition(i, 1, 0, 3, true);
    for (int i : {1, 3}) b.partition(i, 1, 1, 3, true);
    replicate_rest(b, 3);
    check_plan(graph, finished(b));
  }
  SECTION("by given sizes") {
    Builder b(graph, 2, 4);
    b.partition(0, 1, 0, 2, false, {5, 1});
    b.partition(1, 1, 1, 2, false, {5, 1});
    b.partition(2, 1, 0, 2, false, {1, 3});
    b.partition(3, 1, 1, 2, false, {1, 3});
    replicate_rest(b, 2);
    check_plan(graph, finished(b));
  }
  SECTION("in shards") {
    Builder b(graph, 1, 4);
    replicate_rest(b, 1);
    b.zero(plan::Zero::weights);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("parts that take turns on a device") {
  const GraphPtr graph = perceptrons(2);
  for (const bool again : {false, true}) {
    Builder b(graph, 1, 1);
    std::vector<int> nodes;
    for (const graph::Node& node : b.graph().nodes) {
      if (!node.module.starts_with("h.")) continue;
      nodes.push_back(node.id);
      b.partition(node.id, 0, 0, 2);
      b.assign(node.id, {0, 0});
    }
    if (again) b.recompute(nodes);
    replicate_rest(b, 1);
    check_plan(graph, finished(b));
  }
  SECTION("beside a cut over devices") {
    Builder b(graph, 2, 2);
    for (const graph::Node& node : b.graph().nodes) {
      if (!node.module.starts_with("h.")) continue;
      b.partition(node.id, 0, 0, 2);
      b.partition(node.id, 0, 0, 2);
      b.assign(node.id, {0, 0, 1, 1});
    }
    replicate_rest(b, 2);
    check_plan(graph, finished(b));
  }
}

TEST_CASE("devices in any order") {
  // Rows are gathered, columns summed, over devices that ascend and that descend.
  for (const std::vector<int>& devices : {std::vector<int>{0, 1}, std::vector<int>{1, 0}})
    for (int dim : {0, 1}) {
      const GraphPtr graph = linears();
      Builder b(graph, 2, 2);
      for (const graph::Node& node : b.graph().nodes) {
        if (node.op != "aten::linear") continue;
        b.partition(node.id, 1, dim, 2);
        b.assign(node.id, devices);
      }
      replicate_rest(b, 2);
      const Programs programs = check_plan(graph, finished(b));
      for (const auto& lowered : programs.ranks)
        for (const auto& segment : lowered.program.segments)
          for (const auto& instr : segment.instrs)
            for (const auto& arg : instr.args)
              if (arg.name == "group") {
                const auto& group = std::get<Shape>(arg.value);
                CHECK(std::is_sorted(group.begin(), group.end()));
              }
    }
}

TEST_CASE("tied weights are summed over the stages that hold them") {
  const GraphPtr graph = perceptrons(2);
  Builder b(graph, 2, 4);
  b.stage(first_nodes(*graph, {1}), {{0}, {1}});
  replicate_rest(b, 1);
  b.schedule("1f1b", 2, 1);
  const Programs programs = check_plan(graph, finished(b));
  for (const auto& lowered : programs.ranks) {
    const lower::Program& p = lowered.program;
    for (size_t i = 0; i < p.parameters.size(); ++i)
      CHECK(p.shares[i].reduce.size() == (p.slot(p.parameters[i]).name == "wte" ? 4u : 2u));
  }
}

TEST_CASE("an evaluation graph runs under the plan and the homes of training") {
  const GraphPtr training = perceptrons(4), evaluation = perceptrons(4, false);
  const auto compare = [&](Builder& b) {
    const auto plan = finished(b);
    const Programs programs = lower_all(training, plan);
    const Inputs inputs = random_inputs(*evaluation, 2 * static_cast<size_t>(plan->units()), 9);
    const Programs eval = lower_all(evaluation, plan, programs.skeleton);
    CHECK(difference(run(lower_all(evaluation), inputs), run(eval, inputs)) == "");
  };
  SECTION("cut") {
    Builder b(training, 2, 4);
    cut_blocks(b, 2);
    replicate_rest(b, 2);
    compare(b);
  }
  SECTION("sharded") {
    Builder b(training, 1, 2);
    replicate_rest(b, 1);
    b.zero(plan::Zero::weights);
    compare(b);
  }
  SECTION("pipeline") {
    Builder b(training, 2, 2);
    b.stage(first_nodes(*training, {2}), {{0}, {1}});
    replicate_rest(b, 1);
    b.schedule("chimera", 2, 1);
    compare(b);
  }
}

TEST_CASE("a gradient that is an expanded tensor is copied") {
  // The part of the gradient of a joined tensor that goes to `a` is one number, expanded to as many
  // elements as the whole has; nobody reads that memory any more.
  const auto graph = std::make_shared<const graph::Graph>(
      read_graph("graph \"Expanded\" training\ninput %k \"k\": float64[4]\n"
                 "parameter %a \"a\": float64[4] grad\nparameter %u \"u\": float64[3] grad\n"
                 "%s = aten::sum.dim_IntList(self=%a, dim=[0], keepdim=true)\n"
                 "%c = aten::cat(tensors=[%s, %u], dim=0)\n"
                 "%e = aten::exp(self=%c)\n"
                 "%p = aten::mul.Tensor(self=%e, other=%k)\n"
                 "%loss = aten::sum(self=%p)\noutput %loss\n"));
  const Programs programs = lower_all(graph);
  const Inputs inputs = random_inputs(*graph, 3, 2);
  const Outcome got = run(programs, inputs);
  // d loss / d a = k₀ e^Σa, the same for all elements.
  double sum = 0, want = 0;
  for (double x : inputs.weights.at("a").elements()) sum += x;
  for (size_t k = 0; k < 3; ++k)
    want += static_cast<double>(k + 1) * inputs.samples[k].at("k").elements()[0] * std::exp(sum);
  for (double g : got.gradients.at("a").elements()) CHECK(g == Approx(want).epsilon(1e-12));
  CHECK(unmeasured(programs, got) == "");
}

TEST_CASE("copies and casts take memory of their own") {
  // A copy of the weight, in its dtype and in another, lives until its square is made.
  for (const auto& [call, bytes] :
       {std::pair("%c = aten::clone(self=%a)", 128), std::pair("%c = aten::alias(self=%a)", 0),
        std::pair("%c = aten::to.dtype(self=%a, dtype=float32)", 64),
        std::pair("%c = aten::to.dtype(self=%a, dtype=float64)", 0)}) {
    INFO(call);
    const auto graph = std::make_shared<const graph::Graph>(
        read_graph(std::string("graph \"Copies\" evaluation\n"
                               "parameter %a \"a\": float64[16]\n") +
                   call + "\n%s = aten::sum(self=%c)\noutput %s\n"));
    const Programs programs = lower_all(graph);
    const Outcome got = run(programs, random_inputs(*graph, 1, 3));
    CHECK(unmeasured(programs, got) == "");
    CHECK(got.ranks[0].peak == bytes + (bytes == 64 ? 4 : 8));
  }
}

TEST_CASE("the text of a Program marks its blocks, whatever hash it has") {
  const lower::Program program = lower::lower(*perceptrons(3)).program;
  const std::string text = lower::to_text(program);
  const auto count = [&](const std::string& line) {
    size_t n = 0;
    for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++n;
    return n;
  };
  for (const lower::Segment& segment : program.segments) {
    REQUIRE(segment.blocks.size() == 3);
    for (const lower::BlockRun& run : segment.blocks) {
      // The mark, then the first instruction of the run.
      const std::string mark = "  block " + std::to_string(run.body) + " " + run.path + "\n  %" +
                               std::to_string(segment.instrs[run.first].outs.at(0)) + ": ";
      INFO(mark);
      CHECK(count(mark) == 1);
    }
  }
  CHECK(count("\n  end\n") == 6);
  lower::Program moved = program;
  for (lower::Segment& segment : moved.segments)
    for (lower::Instr& instr : segment.instrs) instr.loc = {"elsewhere.lua", 7};
  CHECK(lower::hash(moved) == lower::hash(program));
  CHECK(lower::to_text(moved) != text);
  moved.segments[1].instrs.pop_back();
  CHECK(lower::hash(moved) != lower::hash(program));
}
