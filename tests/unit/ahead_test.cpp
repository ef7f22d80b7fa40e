// Weights in shards are gathered a repeated block ahead, in both directions: where gathers begin
// and end, how many blocks have whole weights at one time, and that wrong marks are refused.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/lua.h"
#include "lower/lower.h"
#include "lower/memory.h"
#include "lower/passes.h"
#include "lower/program_json.h"
#include "lower/uses.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

namespace {

constexpr int kBlocks = 4;

// Of the first of two scale units.
Program program(int zero = plan::Zero::weights) {
  auto graph = test::perceptrons(kBlocks);
  plan::Builder b(graph, 1, 2);
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  b.zero(zero);
  Options options;
  options.plan = std::make_shared<const plan::Plan>(b.finish("hand"));
  return lower::lower(*graph, options).program;
}

bool is_gather(const Program& p, const Segment& s, size_t i) {
  const auto among = [&](const BlockRun& run) {
    const auto list = gathers_of(p, s, run);
    return std::find(list.begin(), list.end(), i) != list.end();
  };
  return std::any_of(s.blocks.begin(), s.blocks.end(), among);
}

// Most bytes that weights which blocks have gathered take at one time, and those of one block.
std::pair<int64_t, int64_t> gathered(const Program& p, const Segment& s) {
  std::map<int, int64_t> of_blocks;  // by slot: bytes
  int64_t one = 0, now = 0, most = 0;
  for (const BlockRun& run : s.blocks) {
    one = 0;
    for (const size_t i : gathers_of(p, s, run)) {
      const int out = s.instrs[i].outs[0];
      one += of_blocks[out] = bytes_of(p.slot(out).type);
    }
  }
  for (const size_t i : begin_order(p, s)) {
    const Instr& instr = s.instrs[i];
    if (is_gather(p, s, i) && of_blocks.contains(instr.outs[0])) now += of_blocks[instr.outs[0]];
    most = std::max(most, now);
    if (instr.kind != InstrKind::release) continue;
    for (int slot : reads(instr))
      if (const auto it = of_blocks.find(slot); it != of_blocks.end()) now -= it->second;
  }
  CHECK(now == 0);
  return {most, one};
}

void refuses(Program p, const std::string& text) {
  CHECK_THROWS_WITH(check(p), Catch::Contains(text));
}

}  // namespace

TEST_CASE("gathers begin with the block before, and end where they are called") {
  const Program p = program();
  REQUIRE(p.segments.size() == 2);
  for (const Segment& s : p.segments) {
    INFO(s.name);
    REQUIRE(s.blocks.size() == kBlocks);
    REQUIRE(s.ahead.size() == kBlocks);
    CHECK(s.ahead[0].after == 0);
    for (size_t k = 1; k < kBlocks; ++k) {
      CHECK(s.ahead[k].block == k);
      CHECK(s.ahead[k].after == s.blocks[k - 1].first);
    }
    const std::vector<size_t> order = begin_order(p, s);
    REQUIRE(order.size() == s.instrs.size());
    CHECK(std::set<size_t>(order.begin(), order.end()).size() == order.size());
    const auto place = [&](size_t i) {
      return std::find(order.begin(), order.end(), i) - order.begin();
    };
    for (size_t k = 0; k < kBlocks; ++k)
      for (size_t i = s.blocks[k].first; i < s.blocks[k].last; ++i) {
        if (!is_gather(p, s, i)) continue;
        // Before all that the block before computes, and after all of the one before that.
        if (k > 0)
          for (size_t j = s.blocks[k - 1].first; j < s.blocks[k - 1].last; ++j)
            if (!is_gather(p, s, j)) CHECK(place(i) < place(j));
        if (k > 1) CHECK(place(i) > place(s.blocks[k - 2].last - 1));
      }
  }
}

TEST_CASE("no more than two blocks have whole weights at one time") {
  const Program p = program();
  Program late = p;
  for (Segment& s : late.segments) s.ahead.clear();
  for (size_t k = 0; k < p.segments.size(); ++k) {
    const auto [most, one] = gathered(p, p.segments[k]);
    CHECK(one > 0);
    CHECK(most <= 2 * one);
    CHECK(most > one);
    CHECK(gathered(late, late.segments[k]).first <= one);
  }
  const int64_t more = memory(p).peak - memory(late).peak;
  CHECK(more > 0);
  CHECK(more <= gathered(p, p.segments[1]).first - gathered(late, late.segments[1]).first);
}

TEST_CASE("nothing begins ahead where weights rest whole") {
  for (int zero : {0, 1, 2})
    for (const Segment& s : program(zero).segments) CHECK(s.ahead.empty());
}

TEST_CASE("gathers ahead are calls of their own in generated code") {
  const std::string text = codegen::to_lua(program());
  for (const char* line :
       {"function block.h_forward_ahead(w)\n", "function block.h_backward_ahead(w)\n",
        "  gather_ahead(w.fc.weight, 0, 12, tp)\n", "  block.h_forward_ahead(p.h[0])\n",
        "    if i ~= 3 then block.h_forward_ahead(p.h[i + 1]) end\n",
        "  block.h_backward_ahead(p.h[3])\n",
        "    if i ~= 0 then block.h_backward_ahead(p.h[i - 1]) end\n"}) {
    INFO(line);
    CHECK(text.find(line) != std::string::npos);
  }
}

TEST_CASE("marks of gathers come back from JSON, and wrong ones are refused") {
  const Program p = program();
  CHECK(to_text(p).find("  gathers of h.1 begin\n") != std::string::npos);
  CHECK(to_text(from_json(to_json(p)).program) == to_text(p));
  const auto mark = [&](size_t k, size_t after, size_t block) {
    Program changed = p;
    changed.segments[0].ahead[k] = {after, block};
    return changed;
  };
  const Segment& s = p.segments[0];
  check(p);
  refuses(mark(1, s.blocks[0].first + 1, 1), "gathers of h.1 begin inside of block h.0");
  refuses(mark(2, s.blocks[0].first, 2), "gathers of h.2 begin before block h.1");
  refuses(mark(3, s.blocks[3].first, 3), "gathers of h.3 begin after");
  refuses(mark(3, s.blocks[2].first, 9), "gathers of block 9 begin; there are 4");
  refuses(mark(1, 0, 0), "gathers of h.0 begin after those of h.0");
}
