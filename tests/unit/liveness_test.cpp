// Releases: memory is freed as soon as nobody reads it any more, whatever looks at it, and releases
// that free nothing wait for the one that does.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

#include "lower/memory.h"
#include "lower/storage.h"
#include "lower/uses.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;
using lower::Instr;
using lower::InstrKind;
using lower::Program;

namespace {

// The most bytes that are needed at one time in a micro-batch: of each memory from where it is made
// to where it is read last. For programs of one stage without repeated blocks.
int64_t needed(const Program& program) {
  const lower::Storage storage(program);
  struct Life {
    size_t first = SIZE_MAX, last = 0;
  };
  std::map<int, Life> lives;  // by root
  size_t n = 0;
  const auto see = [&](int slot) {
    if (slot < 0 || !lower::is_local(program, storage.root(slot))) return;
    Life& life = lives[storage.root(slot)];
    life.first = std::min(life.first, n);
    life.last = std::max(life.last, n);
  };
  for (const lower::Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind == InstrKind::release) continue;
      for (int slot : lower::reads(instr)) see(slot);
      for (int slot : instr.outs) see(slot);
      ++n;
    }
  for (const lower::Segment& segment : program.segments) {
    for (const int slot : segment.outputs) see(slot);  // to the end
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::update) see(lower::reads(instr)[0]);
  }
  std::vector<int64_t> there(n + 1, 0);
  for (const auto& [root, life] : lives)
    for (size_t i = life.first; i <= life.last; ++i) there[i] += storage.bytes(root);
  return *std::max_element(there.begin(), there.end());
}

void frees_at_once(const Programs& programs) {
  for (const auto& lowered : programs.ranks) {
    const Program& program = lowered.program;
    for (const lower::Segment& segment : program.segments) REQUIRE(segment.blocks.empty());
    CHECK(lower::memory(program).peak == needed(program));
  }
}

// A program of one device, from a graph's text.
Program program_of(const std::string& body) {
  const auto graph =
      std::make_shared<const graph::Graph>(read_graph("graph \"G\" training\n" + body));
  return lower_all(graph).ranks[0].program;
}

// What is released behind each call of forward, by operator.
std::map<std::string, size_t> releases_of(const Program& program) {
  std::map<std::string, size_t> out;
  std::string call;
  for (const Instr& instr : program.segments[0].instrs)
    if (instr.kind == InstrKind::release)
      out[call] += instr.args.size();
    else
      call = instr.op;
  return out;
}
using Releases = std::map<std::string, size_t>;

}  // namespace

TEST_CASE("no memory is held longer than it is read", "[liveness]") {
  for (const GraphPtr& graph :
       {linears(), linears({8, 16, 4, 12, 8}), oddities(), convolutions()}) {
    frees_at_once(lower_all(graph));
    for (const graph::Node& cut : graph->nodes) {
      const plan::Builder all(graph, 2, 2);
      for (const annotate::Place& place : all.choices(cut.id)) {
        plan::Builder b(graph, 2, 2);
        if (b.refusal(cut.id, place.input, place.dim, 2)) continue;
        b.partition(cut.id, place.input, place.dim, 2);
        for (const graph::Node& node : graph->nodes)
          if (node.id != cut.id) b.replicate(node.id, 2);
        INFO(cut.op << " cut at " << place.input << ", " << place.dim);
        frees_at_once(lower_all(graph, std::make_shared<const plan::Plan>(b.finish("hand"))));
      }
    }
  }
}

TEST_CASE("releases stand behind the last reader of their memory", "[liveness]") {
  const std::string input = "input %a \"a\": float64[4, 6]\n";
  // The view lives on: its base is released with it.
  CHECK(
      releases_of(program_of(
          input + "%x = aten::sin(self=%a)\n%v = aten::narrow(self=%x, dim=0, start=0, length=2)\n"
                  "%c = aten::cos(self=%a)\n%t = aten::tanh(self=%v)\n"
                  "%u = aten::sum(self=%t)\n%w = aten::sum(self=%c)\n"
                  "%s = aten::add.Tensor(self=%u, other=%w)\noutput %s\n")) ==
      Releases{{"aten::tanh", 2}, {"aten::sum", 2}, {"aten::add.Tensor", 2}});
  // What looks at a sample frees nothing: it waits for the next that does.
  CHECK(releases_of(program_of(
            input + "%v = aten::narrow(self=%a, dim=0, start=0, length=2)\n"
                    "%x = aten::sin(self=%v)\n%y = aten::cos(self=%x)\n%s = aten::sum(self=%y)\n"
                    "output %s\n")) == Releases{{"aten::cos", 2}, {"aten::sum", 1}});
  // Results and samples are never released.
  CHECK(releases_of(program_of(input + "%x = aten::sin(self=%a)\n%s = aten::sum(self=%x)\n"
                                       "output %s\noutput %x\n")) == Releases{});
}
