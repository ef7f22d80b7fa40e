// Sums of gradients: what is in a bucket, and in which order buckets can start.
#include "lower/traffic.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "lower/gradients.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/interpreter.h"

using namespace nns;
using namespace nns::test;

namespace {

// Linear layers of the given dtypes, one after another, on two scale units. With `tied` the first
// one's weight is the last one's too.
lower::Program layers(const std::vector<DType>& dtypes, bool tied) {
  std::string text = "graph \"Layers\" training\ninput %x0 \"x\": float64[2, 4]\n";
  for (size_t i = 0; i < dtypes.size(); ++i)
    text += fmt::format("parameter %w{0} \"w{0}\": {1}[4, 4] grad\n", i, name_of(dtypes[i]));
  DType now = DType::f64;
  const auto layer = [&](size_t at, size_t weight) {
    std::string from = fmt::format("x{}", at);
    if (dtypes[weight] != now) {
      text += fmt::format("%c{0} = aten::to.dtype(self=%x{0}, dtype={1})\n", at,
                          name_of(dtypes[weight]));
      from = fmt::format("c{}", at);
    }
    now = dtypes[weight];
    text += fmt::format("%x{} = aten::linear(input=%{}, weight=%w{})\n", at + 1, from, weight);
  };
  for (size_t i = 0; i < dtypes.size(); ++i) layer(i, i);
  size_t last = dtypes.size();
  if (tied) layer(last++, 0);
  text += fmt::format("%loss = aten::sum(self=%x{})\noutput %loss\n", last);
  const auto graph = std::make_shared<const graph::Graph>(read_graph(text));
  plan::Builder b(graph, 1, 2);
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  return lower_all(graph, std::make_shared<const plan::Plan>(b.finish("dp"))).ranks[0].program;
}

// The sets of gradients that ranks sum, of so many bytes at most.
std::vector<lower::GradientSet> summed(const lower::Program& program, int64_t bytes) {
  return lower::gradient_sets(program, bytes, {}, {}, true);
}

std::vector<std::vector<std::string>> names(const lower::Program& program,
                                            const std::vector<lower::GradientSet>& buckets) {
  std::vector<std::vector<std::string>> out;
  for (const lower::GradientSet& bucket : buckets) {
    out.emplace_back();
    for (int id : bucket.parameters) out.back().push_back(program.slot(id).name);
  }
  return out;
}

// Number of the instruction that gives a parameter its last addend.
size_t last_addend(const lower::Program& program, int parameter) {
  size_t n = 0, last = 0;
  for (const lower::Segment& segment : program.segments)
    for (const lower::Instr& instr : segment.instrs) {
      ++n;
      if (instr.kind == lower::InstrKind::accumulate && instr.target == parameter) last = n;
    }
  return last;
}

}  // namespace

TEST_CASE("a bucket stands where its last gradient is complete") {
  using enum DType;
  // Backward gives w2, then w1, then w0: the bucket of w2 and w0 ends after that of w1.
  const lower::Program p = layers({f64, f32, f64}, false);
  using Names = std::vector<std::vector<std::string>>;
  CHECK(names(p, summed(p, 1 << 20)) == Names{{"w1"}, {"w2", "w0"}});
  // One gradient of 128 bytes a bucket.
  CHECK(names(p, summed(p, 128)) == Names{{"w2"}, {"w1"}, {"w0"}});
  CHECK(names(p, summed(p, 1)) == Names{{"w2"}, {"w1"}, {"w0"}});
  // A weight that is used twice is complete at its first use.
  const lower::Program tied = layers({f64, f64, f64}, true);
  CHECK(names(tied, summed(tied, 1 << 20)) == Names{{"w2", "w1", "w0"}});
}

TEST_CASE("every product of a weight's gradient is written where the gradient lies") {
  using enum DType;
  // Of the parameters, in the order of backward, how many products lie in their gradients.
  const auto written = [](const lower::Program& p) {
    std::vector<std::string> out;
    for (const lower::Segment& segment : p.segments)
      for (const lower::Instr& instr : segment.instrs)
        if (instr.into >= 0) out.push_back(p.slot(instr.into).name);
    return out;
  };
  CHECK(written(layers({f64, f64}, false)) == std::vector<std::string>{"w1", "w0"});
  // The addend of the second use too.
  CHECK(written(layers({f64, f64}, true)) == std::vector<std::string>{"w0", "w1", "w0"});
  const lower::Program p = layers({f64, f64}, false);
  CHECK(lower::to_text(p).find("aten::linear(input=%") != std::string::npos);
}

TEST_CASE("parameters without a gradient here are in a set where another rank has one") {
  using enum DType;
  lower::Program p = layers({f64, f64}, false);
  for (lower::Segment& segment : p.segments)
    std::erase_if(segment.instrs, [&](const lower::Instr& instr) {
      return instr.kind == lower::InstrKind::accumulate && p.slot(instr.target).name == "w1";
    });
  using Names = std::vector<std::vector<std::string>>;
  CHECK(names(p, lower::gradient_sets(p, 1 << 20, {"w0", "w1"}, {"w0", "w1"}, true)) ==
        Names{{"w0", "w1"}});
  CHECK(names(p, lower::gradient_sets(p, 1 << 20, {"w0"}, {"w0"}, true)) == Names{{"w0"}});
}

TEST_CASE("buckets follow one another as backward completes them") {
  CHECK(rc::check([] {
    std::vector<DType> dtypes;
    const int n = *rc::gen::inRange(1, 7);
    for (int i = 0; i < n; ++i) dtypes.push_back(*rc::gen::element(DType::f64, DType::f32));
    const lower::Program p = layers(dtypes, *rc::gen::arbitrary<bool>());
    const int64_t limit = *rc::gen::element<int64_t>(1, 130, 200, 400, 1 << 20);
    const auto buckets = summed(p, limit);
    std::map<DType, size_t> before;
    std::set<int> seen;
    for (const lower::GradientSet& bucket : buckets) {
      RC_ASSERT(bucket.ranks == (std::vector<int>{0, 1}));
      int64_t bytes = 0;
      size_t at = 0;
      for (int id : bucket.parameters) {
        RC_ASSERT(seen.insert(id).second);
        RC_ASSERT(p.slot(id).type.dtype == p.slot(bucket.parameters[0]).type.dtype);
        RC_ASSERT(last_addend(p, id) > at);  // within a bucket in the order of backward
        at = last_addend(p, id);
        bytes += bytes_of(p.slot(id).type);
      }
      RC_ASSERT(bytes <= limit || bucket.parameters.size() == 1);
      size_t& same = before[p.slot(bucket.parameters[0]).type.dtype];
      RC_ASSERT(at > same);
      same = at;
    }
    RC_ASSERT(seen.size() == p.parameters.size());
    // Those that nothing but the end of backward closes stand in the order of their last gradient.
    if (limit == 1 << 20) {
      size_t at = 0;
      for (const lower::GradientSet& bucket : buckets) {
        RC_ASSERT(last_addend(p, bucket.parameters.back()) > at);
        at = last_addend(p, bucket.parameters.back());
      }
    }
  }));
}

TEST_CASE("an all-reduce sends each part twice around") {
  for (int64_t n : {1, 2, 3, 4})
    for (int64_t elements : {0, 1, 5, 8, 13}) {
      int64_t total = 0;
      for (int64_t r = 0; r < n; ++r) total += lower::sent_by_all_reduce(elements, n, r);
      CHECK(total == 2 * (n - 1) * elements);
    }
}
