// The check of all ranks' Programs, by mutation: what is right passes, and each fault is refused by
// name.
#include "lower/check_ranks.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "base/error.h"
#include "lower/lower.h"
#include "lower/passes.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;
using graph::ValueRef;

namespace {

struct Case {
  std::shared_ptr<const graph::Graph> graph = test::linears({8, 6, 10, 4, 8});
  std::shared_ptr<const plan::Plan> plan;
  std::vector<Program> programs;

  void make(plan::Builder& builder) {
    plan = std::make_shared<const plan::Plan>(builder.finish("hand"));
    for (int rank = 0; rank < plan->runtime_ngpus; ++rank) {
      Options options;
      options.plan = plan;
      options.rank = rank;
      programs.push_back(lower::lower(*graph, options).program);
    }
  }
  void check() const {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    check_ranks(all, *plan);
  }
  Segment& segment(int rank, const std::string& name) {
    for (Segment& s : programs[static_cast<size_t>(rank)].segments)
      if (s.name == name) return s;
    throw std::runtime_error("no segment " + name);
  }
  // Index of the n-th instruction with this operator.
  size_t find(const Segment& segment, const std::string& op, int n = 0) {
    for (size_t i = 0; i < segment.instrs.size(); ++i)
      if (segment.instrs[i].op == op && n-- == 0) return i;
    throw std::runtime_error("no " + op);
  }
  void erase(int rank, const std::string& name, const std::string& op) {
    Segment& s = segment(rank, name);
    s.instrs.erase(s.instrs.begin() + static_cast<std::ptrdiff_t>(find(s, op)));
  }
  Shape& ints(Instr& instr, const std::string& name) {
    for (auto& a : instr.args)
      if (a.name == name) return std::get<Shape>(a.value);
    throw std::runtime_error("no argument " + name);
  }
};

// Pairs of layers cut by rows, then by columns, on two devices; one stage or two; two scale units.
Case cut(int stages, const std::string& schedule = "1f1b") {
  Case c;
  plan::Builder b(c.graph, 2 * stages, 4 * stages);
  if (stages == 2) b.stage({2}, {{0, 1}, {2, 3}});
  for (int i : {0, 2}) b.partition(i, 1, 0, 2);
  for (int i : {1, 3}) b.partition(i, 0, 1, 2);
  b.replicate(4, 2);
  b.schedule(schedule, 2, 1);
  c.make(b);
  return c;
}

}  // namespace

TEST_CASE("programs of all ranks agree") {
  cut(1).check();
  for (const char* schedule : {"1f1b", "gpipe", "zb_h1", "chimera"}) {
    INFO(schedule);
    cut(2, schedule).check();
  }
}

TEST_CASE("several stages a device agree") {
  for (const char* schedule : {"1f1b_interleaved", "zbv"}) {
    INFO(schedule);
    Case c;
    plan::Builder b(c.graph, 2, 2);
    const bool v = std::string(schedule) == "zbv";
    b.stage({1, 2, 3}, {{0}, {1}, {v ? 1 : 0}, {v ? 0 : 1}});
    for (int i = 0; i < 5; ++i) b.replicate(i, 1);
    b.schedule(schedule, 2, 2);
    c.make(b);
    c.check();
    REQUIRE(c.programs[0].segments.size() == (v ? 6 : 4));
  }
}

TEST_CASE("a message without its other half is refused") {
  Case c = cut(2);
  SECTION("no send") {
    c.erase(0, "forward", "comm::send");
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 2 waits for") &&
                                     Catch::Contains("from rank 0, which never sends it"));
  }
  SECTION("no receive") {
    c.erase(2, "forward", "comm::receive");
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 0 sends") &&
                                     Catch::Contains("to rank 2 in micro-batch 0, which never"));
  }
  SECTION("no gradient") {
    c.erase(3, "backward", "comm::send");
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 1 waits for") &&
                                     Catch::Contains("from rank 3, which never sends it"));
  }
  SECTION("another region") {
    Segment& s = c.segment(0, "forward");
    c.ints(s.instrs[c.find(s, "comm::send")], "moves")[2] -= 1;
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 2 expects") &&
                                     Catch::Contains("from rank 0, which sends"));
  }
}

TEST_CASE("collectives in another order are refused") {
  Case c = cut(1);
  Segment& s = c.segment(1, "forward");
  std::swap(s.instrs[c.find(s, "comm::all_reduce")], s.instrs[c.find(s, "comm::all_reduce", 1)]);
  CHECK_THROWS_WITH(c.check(), Catch::Contains("the ranks of group 0,1 disagree: rank 0 calls"));
}

TEST_CASE("a group of the wrong ranks is refused") {
  Case c = cut(2);
  Segment& s = c.segment(0, "forward");
  Shape& group = c.ints(s.instrs[c.find(s, "comm::all_reduce")], "group");
  SECTION("others") {
    group = {1, 2};
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 0 calls comm::all_reduce") &&
                                     Catch::Contains("of which it is not a member"));
  }
  SECTION("one too many") {
    group = {0, 1, 4};
    CHECK_THROWS_WITH(c.check(), Catch::Contains("waits for ever at comm::all_reduce"));
  }
  SECTION("a rank that there is not") {
    group = {0, 99};
    CHECK_THROWS_WITH(c.check(), Catch::Contains("there are 8 ranks"));
  }
}

TEST_CASE("a gradient that is summed more or less than once is refused") {
  Case c = cut(2);
  Segment& s = c.segment(0, "backward");
  size_t at = 0;
  while (s.instrs[at].kind != InstrKind::accumulate) ++at;
  Share& share = c.programs[0].shares[0];
  REQUIRE(share.reduce == std::vector<int>{0, 4});
  SECTION("accumulated twice") {
    const Instr again = s.instrs[at];
    s.instrs.insert(s.instrs.begin() + static_cast<std::ptrdiff_t>(at), again);
    CHECK_THROWS_WITH(c.check(), Catch::Contains("twice to the gradient of fc"));
  }
  SECTION("a rank counts twice") {
    share.reduce = {0, 0, 4};
    CHECK_THROWS_WITH(c.check(),
                      Catch::Contains("rank 0 reduces the gradient of fc0.weight twice"));
  }
  SECTION("reduced in backward already") {
    Instr reduce;
    reduce.op = "comm::all_reduce";
    const int value = std::get<ValueRef>(s.instrs[at].args[0].value).id;
    const std::string name = c.programs[0].slot(s.instrs[at].target).name;
    Slot sum = c.programs[0].slot(value);
    sum.id = static_cast<int>(c.programs[0].slots.size());
    c.programs[0].slots.push_back(sum);
    reduce.args = {{"self", ValueRef{value}}, {"group", Shape{0, 4}}};
    reduce.outs = {sum.id};
    s.instrs[at].args[0].value = ValueRef{sum.id};
    s.instrs.insert(s.instrs.begin() + static_cast<std::ptrdiff_t>(at), reduce);
    // Its partner does the same, so that only the gradient is wrong.
    Segment& twin = c.segment(4, "backward");
    size_t there = 0;
    while (twin.instrs[there].kind != InstrKind::accumulate) ++there;
    twin.instrs.insert(twin.instrs.begin() + static_cast<std::ptrdiff_t>(there), reduce);
    c.programs[4].slots.push_back(sum);
    CHECK_THROWS_WITH(c.check(),
                      Catch::Contains("rank 0 reduces the gradient of " + name + " twice"));
  }
  SECTION("never over the scale units") {
    share.reduce.clear();
    c.programs[4].shares[0].reduce.clear();
    CHECK_THROWS_WITH(c.check(), Catch::Contains("never adds the gradient of fc0.weight"));
  }
  SECTION("with ranks that do not hold it") {
    share.reduce = {0, 2};
    CHECK_THROWS_WITH(c.check(), Catch::Contains("with rank 2, which does not hold it"));
  }
  SECTION("another set on the other rank") {
    c.programs[4].shares[0].reduce = {4};
    CHECK_THROWS_WITH(c.check(), Catch::Contains("rank 0 sums the gradient of fc0.weight over"));
  }
}

TEST_CASE("a tensor that is released too early is refused") {
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    Case c = cut(2, schedule);
    Program& p = c.programs[2];
    Segment& s = c.segment(2, "backward");
    INFO(schedule);
    size_t at = s.instrs.size();
    while (s.instrs[--at].kind != InstrKind::release) {
    }
    const int slot = std::get<ValueRef>(s.instrs[at].args[0].value).id;
    size_t use = at;
    while (use-- > 0) {
      const auto& args = s.instrs[use].args;
      if (std::any_of(args.begin(), args.end(), [&](const NamedArg& a) {
            const auto* ref = std::get_if<ValueRef>(&a.value);
            return ref != nullptr && ref->id == slot;
          }))
        break;
    }
    const Instr release = s.instrs[at];
    s.instrs.erase(s.instrs.begin() + static_cast<std::ptrdiff_t>(at));
    s.instrs.insert(s.instrs.begin() + static_cast<std::ptrdiff_t>(use), release);
    CHECK_THROWS_WITH(check(p), Catch::Contains("is used"));
  }
}

TEST_CASE("backward may not release what the weight gradients need") {
  Case c = cut(2, "zb_h1");
  Program& p = c.programs[2];
  Segment& backward = c.segment(2, "backward");
  const Segment& weight = c.segment(2, "weight");
  REQUIRE(!weight.saved_in.empty());
  Instr release;
  release.kind = InstrKind::release;
  int kept = -1;
  for (int slot : weight.saved_in)
    if (p.slot(slot).role == SlotRole::activation) kept = slot;
  release.args = {{"", ValueRef{kept}}};
  backward.instrs.push_back(release);
  CHECK_THROWS_WITH(check(p), Catch::Contains("segment"));
}
