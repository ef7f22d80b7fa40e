// Programs of small models under plans of every kind, beside their texts of before
// (tests/unit/golden), and plans drawn at random in a line each.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "cost/hardware.h"
#include "lower/duration.h"
#include "lower/memory.h"
#include "lower/program_json.h"
#include "lower/traffic.h"
#include "plan/builder.h"
#include "support/drawn_plan.h"
#include "support/golden.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;
using plan::Builder;

namespace {

std::string text_of(const lower::Lowered& lowered) {
  const lower::Program& program = lowered.program;
  std::string text = lower::to_text(program);
  text += fmt::format("JSON {}\n", hex(hash_bytes(lower::to_json(program))));
  const lower::Memory m = lower::memory(program);
  text += fmt::format("memory: peak {}, saved {}, parameters {}, gradients {}\n", m.peak, m.saved,
                      m.parameters, m.gradients);
  for (const lower::Traffic& t : lower::traffic(program))
    text += fmt::format("traffic: {} {} of {}: {} calls, {} bytes{}\n", t.segment, t.op, t.ranks,
                        t.calls, t.bytes, t.weights ? ", weights" : "");
  text += fmt::format("adapters: {}, paired {}\n", lowered.adapters.all, lowered.adapters.paired);
  for (const auto& [kinds, count] : lowered.adapters.pairs)
    text += fmt::format("  {} {}\n", kinds, count);
  for (const std::string& note : lowered.notes) text += "note: " + note + "\n";
  for (const std::string& warning : lowered.warnings) text += "warning: " + warning + "\n";
  return text;
}

// What a step of the plan takes on hosts of one device each.
std::string cost_of(const GraphPtr& graph, const std::shared_ptr<const plan::Plan>& plan) {
  const cost::Hardware lab = cost::parse_hardware(
      "name: lab\ndevices_per_host: 1\n"
      "device: { memory: 80e9, memory_bandwidth: 1e12, flops: { float32: 1e13 }, start: 1e-6,\n"
      "  half_filled: 1, product_efficiency: 1, memory_efficiency: 0.5 }\n"
      "links: { inside: 1e11, across: 1e10, latency: 2e-6, start: 1e-5 }\n",
      "lab.yaml");
  lower::Options options;
  options.plan = plan;
  const auto c = lower::simulate(lower::Skeleton(graph, options), *plan, lab, {});
  return fmt::format(
      "cost: forward {:.6g} and messages {:.6g} s, backward {:.6g} and {:.6g} s, sums {:.6g} s, "
      "update {:.6g} s, step {:.6g} s; resting {} bytes, in all {} bytes\n",
      c.forward.work, c.forward.communication, c.backward.work, c.backward.communication,
      c.once.sum, c.once.update, c.seconds, c.resting, c.total);
}

// The Programs of the first and the last rank of a plan.
void is_as_before(const std::string& name, const GraphPtr& graph,
                  std::shared_ptr<const plan::Plan> plan = nullptr) {
  INFO(name);
  std::string text;
  const Programs programs = lower_all(graph, plan);
  text += text_of(programs.ranks.front());
  if (programs.ranks.size() > 1) text += text_of(programs.ranks.back());
  if (plan != nullptr) text += cost_of(graph, plan);
  is_golden(name, text);
}

// Whatever has no place yet is on all devices of its stage.
std::shared_ptr<const plan::Plan> finished(Builder& b, int devices) {
  for (const graph::Node& node : b.graph().nodes)
    if (!b.planned(node.id)) b.replicate(node.id, devices);
  return std::make_shared<const plan::Plan>(b.finish("hand"));
}

// Megatron's cuts of the blocks: rows of fc, columns of proj.
void cut_blocks(Builder& b) {
  for (const graph::Node& node : b.graph().nodes) {
    if (node.module.ends_with(".fc")) b.partition(node.id, 1, 0, 2);
    if (node.module.ends_with(".proj")) b.partition(node.id, 1, 1, 2);
    if (node.op == "aten::gelu") b.partition(node.id, 0, 2, 2);
  }
}

// The first node of a block.
int first_of(const graph::Graph& graph, int block) {
  for (const graph::Node& node : graph.nodes)
    if (node.module.starts_with("h." + std::to_string(block) + ".")) return node.id;
  throw std::runtime_error("no block");
}

void recompute_blocks(Builder& b, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    std::vector<int> nodes;
    for (const graph::Node& node : b.graph().nodes)
      if (node.module.starts_with("h." + std::to_string(i) + ".")) nodes.push_back(node.id);
    b.recompute(nodes);
  }
}

// A recurrent cell, unrolled, that reads column after column of its input; its gate passes a second
// state on, from step `changed` on the first one's.
GraphPtr unrolled(int steps, int changed) {
  std::string text =
      "graph \"Unrolled\" training\ninput %x \"x\": float64[2, 4]\n"
      "input %c \"c\": float64[2, 40]\n"
      "parameter %w \"w\": float64[4, 4] grad\nparameter %v \"v\": float64[4, 4] grad\n"
      "%a0 = aten::linear(input=%x, weight=%v)\n%b0 = aten::tanh(self=%x)\n";
  for (int i = 1; i <= steps; ++i)
    text += fmt::format(
        "%u{0} = aten::linear(input=%a{1}, weight=%w)\n%g{0} = aten::sigmoid(self=%u{0})\n"
        "%b{0} = aten::mul.Tensor(self=%g{0}, other=%b{2})\n"
        "%n{0} = aten::narrow(self=%c, dim=1, start={1}, length=1)\n"
        "%s{0} = aten::add.Tensor(self=%u{0}, other=%n{0}, alpha=1)\n"
        "%a{0} = aten::add.Tensor(self=%s{0}, other=%b{0}, alpha=1)\n",
        i, i - 1, i < changed ? i - 1 : 0);
  text += fmt::format("%loss = aten::sum(self=%a{})\noutput %loss\n", steps);
  return std::make_shared<const graph::Graph>(read_graph(text));
}

// A cell whose every turn drops elements of its own and reads a table to its end.
GraphPtr unrolled_draws(int steps) {
  std::string text =
      "graph \"Draws\" training\ninput %x \"x\": float64[2, 4]\ninput %c \"c\": float64[2, 40]\n"
      "parameter %w \"w\": float64[4, 4] grad\n%a0 = aten::relu(self=%x)\n";
  for (int i = 1; i <= steps; ++i)
    text += fmt::format(
        "%u{0} = aten::linear(input=%a{1}, weight=%w)  -- cell\n"
        "%d{0} = aten::dropout(input=%u{0}, p=0.5, train=true)  -- cell.drop\n"
        "%n{0} = aten::slice.Tensor(self=%c, dim=1, start=0, end=9223372036854775807, step=1)\n"
        "%s{0} = aten::sum.dim_IntList(self=%n{0}, dim=[1], keepdim=true)\n"
        "%t{0} = aten::expand(self=%s{0}, size=[2, 4])\n"
        "%a{0} = aten::add.Tensor(self=%d{0}, other=%t{0}, alpha=1)\n",
        i, i - 1);
  text += fmt::format("%loss = aten::sum(self=%a{})\noutput %loss\n", steps);
  return std::make_shared<const graph::Graph>(read_graph(text));
}

// Two calls of attention with dropout, which are composed alike.
GraphPtr attentive() {
  return std::make_shared<const graph::Graph>(read_graph(
      "graph \"Attentive\" training\ninput %x \"x\": float64[2, 2, 3, 4]\n"
      "parameter %w \"w\": float64[4, 4] grad\n%q = aten::linear(input=%x, weight=%w)\n"
      "%a = aten::scaled_dot_product_attention(query=%q, key=%x, value=%x, dropout_p=0.5)\n"
      "%b = aten::scaled_dot_product_attention(query=%a, key=%x, value=%q, dropout_p=0.5)\n"
      "%loss = aten::sum(self=%b)\noutput %loss\n"));
}

}  // namespace

TEST_CASE("programs are those of before") {
  is_as_before("one_device", oddities());
  is_as_before("blocks", transformer(3));
  is_as_before("evaluation", perceptrons(2, false));
  is_as_before("unrolled", unrolled(12, 99));
  is_as_before("unrolled_in_two", unrolled(18, 10));
  is_as_before("unrolled_draws", unrolled_draws(10));
  is_as_before("attention", attentive());
  {
    const GraphPtr graph = convolutions();
    Builder b(graph, 1, 2);
    is_as_before("scale_units", graph, finished(b, 1));
  }
  {
    const GraphPtr graph = transformer(2);
    Builder b(graph, 1, 1);
    recompute_blocks(b, 2);
    is_as_before("recompute", graph, finished(b, 1));
  }
  {
    const GraphPtr graph = perceptrons(2);
    Builder b(graph, 2, 4);
    cut_blocks(b);
    is_as_before("cut", graph, finished(b, 2));
  }
  {
    const GraphPtr graph = oddities();
    Builder b(graph, 2, 2);
    for (const graph::Node& node : graph->nodes) {
      if (node.op == "aten::linear") b.partition(node.id, 0, 0, 2);
      if (node.op == "aten::embedding") b.partition(node.id, 0, 1, 2);
    }
    is_as_before("rows", graph, finished(b, 2));
  }
  {
    const GraphPtr graph = linears();
    Builder b(graph, 2, 2);
    b.partition(0, 1, 0, 2, false, {5, 1});
    b.partition(1, 1, 1, 2, false, {5, 1});
    is_as_before("uneven", graph, finished(b, 2));
  }
  for (const char* schedule : {"1f1b", "zb_h1", "chimera"}) {
    const GraphPtr graph = perceptrons(4);
    Builder b(graph, 2, 2);
    b.stage({first_of(*graph, 2)}, {{0}, {1}});
    b.schedule(schedule, 4, 1);
    is_as_before(schedule, graph, finished(b, 1));
  }
  {
    const GraphPtr graph = perceptrons(4);
    Builder b(graph, 2, 2);
    b.stage({first_of(*graph, 1), first_of(*graph, 2), first_of(*graph, 3)}, {{0}, {1}, {0}, {1}});
    b.schedule("1f1b_interleaved", 4, 2);
    is_as_before("interleaved", graph, finished(b, 1));
  }
  {
    const GraphPtr graph = perceptrons(2);
    Builder b(graph, 1, 1);
    std::vector<int> nodes;
    for (const graph::Node& node : graph->nodes) {
      if (!node.module.starts_with("h.")) continue;
      nodes.push_back(node.id);
      b.partition(node.id, 0, 0, 2);
      b.assign(node.id, {0, 0});
    }
    b.recompute(nodes);
    is_as_before("turns", graph, finished(b, 1));
  }
}

TEST_CASE("programs of plans drawn at random are those of before") {
  std::mt19937 engine(7);  // the same numbers in every library
  const Draw draw = [&](int low, int high) {
    return low + static_cast<int>(engine() % static_cast<unsigned>(high - low));
  };
  std::string text;
  for (int i = 0; i < 60; ++i) {
    try {
      const Drawn drawn = draw_plan(draw);
      const auto plan = std::make_shared<const plan::Plan>(drawn.plan);
      Digest digest;
      digest.add(lower_all(drawn.graph, plan));
      text += digest.text() + "\n" + cost_of(drawn.graph, plan);
    } catch (const Error& e) {
      text += fmt::format("refused: {}\n", e.what());
    }
  }
  is_golden("drawn", text);
}
