// The check of one rank's Program, by mutation: what is right passes, and each fault is refused by
// segment, instruction and slot.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>

#include "base/error.h"
#include "lower/lower.h"
#include "lower/passes.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

namespace {

Program program_of(const test::GraphPtr& graph) {
  return lower::lower(*graph, {}).program;
}

std::string refusal(const Program& program) {
  try {
    check(program);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::internal);
    return e.what();
  }
  return "";
}

// What the check says of the program of `oddities()` after a change.
std::string refusal(const std::function<void(Program&)>& change) {
  Program program = program_of(test::oddities());
  change(program);
  return refusal(program);
}

size_t find(const Segment& segment, const std::function<bool(const Instr&)>& wanted) {
  for (size_t i = 0; i < segment.instrs.size(); ++i)
    if (wanted(segment.instrs[i])) return i;
  throw std::runtime_error("no such instruction");
}
Instr& first(Segment& segment, InstrKind kind) {
  return segment.instrs[find(segment, [&](const Instr& i) { return i.kind == kind; })];
}
Instr& call(Segment& segment, const std::string& op) {
  return segment.instrs[find(segment, [&](const Instr& i) { return i.op == op; })];
}
void erase(Segment& segment, const Instr& instr) {
  segment.instrs.erase(segment.instrs.begin() + (&instr - segment.instrs.data()));
}

}  // namespace

TEST_CASE("programs of the models are well formed") {
  for (const auto& graph : {test::oddities(), test::transformer(3), test::convolutions(),
                            test::perceptrons(2, false), test::alike(3)})
    CHECK(refusal(program_of(graph)).empty());
}

TEST_CASE("a tensor that is not there is refused by name") {
  // The first call of forward makes what the second reads.
  CHECK(refusal([](Program& p) { p.segments[0].instrs.erase(p.segments[0].instrs.begin()); }) ==
        "[lower.check] segment forward, instruction 0: %8 (transpose) is used before it is made");
  CHECK(refusal([](Program& p) {
          Segment& s = p.segments[0];
          Instr release = first(s, InstrKind::release);
          const size_t at =
              find(s, [](const Instr& i) { return i.op == "aten::masked_fill.Scalar"; });
          erase(s, first(s, InstrKind::release));
          s.instrs.insert(s.instrs.begin() + static_cast<std::ptrdiff_t>(at), release);
        }) ==
        "[lower.check] segment forward, instruction 5: %11 (linear) is used after its release");
  CHECK(refusal([](Program& p) { p.segments[0].inputs.pop_back(); }) ==
        "[lower.check] segment forward, instruction 10: %1 (i) is used before it is made");
}

TEST_CASE("what segments hand to each other is checked") {
  CHECK(refusal([](Program& p) { p.segments[0].saved_out.clear(); }) ==
        "[lower.check] segment backward: saved value %0 (x) is not provided");
  CHECK(refusal([](Program& p) {
          p.segments[1].saved_in.pop_back();
        }).ends_with("%25 (sub) is used after its release"));
  CHECK(refusal([](Program& p) { p.segments[0].saved_out.push_back(8); }) ==
        "[lower.check] segment forward: saved value %8 (transpose) is gone at the end");
  CHECK(refusal([](Program& p) { p.segments[0].outputs.push_back(8); }) ==
        "[lower.check] segment forward: output %8 (transpose) is gone at the end");
}

TEST_CASE("releases are checked") {
  const auto released = [](int slot) {
    return refusal([slot](Program& p) {
      first(p.segments[0], InstrKind::release).args.push_back({"", Ref{slot}});
    });
  };
  const std::string at = "[lower.check] segment forward, instruction 5: ";
  CHECK(released(0) == at + "%0 (x) is not this segment's to release");
  CHECK(released(2) == at + "%2 (a) is not this segment's to release");
  CHECK(released(8) == at + "%8 (transpose) is released twice");
  // What a release gives up is not handed on.
  CHECK(refusal([](Program& p) {
          Segment& s = p.segments[1];
          s.saved_out.push_back(29);
        }) == "[lower.check] segment backward: saved value %29 (div) is gone at the end");
}

TEST_CASE("gradients and updates go where they belong") {
  const auto retarget = [](InstrKind kind, int target) {
    return [=](Program& p) { first(p.segments[1], kind).target = target; };
  };
  CHECK(refusal(retarget(InstrKind::accumulate, 0))
            .ends_with("gradient of %0 (x), which is not a parameter"));
  CHECK(refusal(retarget(InstrKind::accumulate, 2))
            .ends_with("gradient float64[3, 8] of parameter %2 (a), of which it is float64[6, 8]"));
  Program program = program_of(test::convolutions());
  for (Segment& s : program.segments)
    for (Instr& instr : s.instrs)
      if (instr.kind == InstrKind::update) instr.target = program.parameters[0];
  CHECK_THAT(refusal(program),
             Catch::Matchers::Contains("update of %2 (conv.weight), which is not a buffer"));
  // An accumulation that takes its tensor over ends its life; one that copies does not.
  CHECK(refusal([](Program& p) {
          Segment& s = p.segments[1];
          s.outputs.push_back(std::get<Ref>(first(s, InstrKind::accumulate).args[0].value).id);
        }) == "[lower.check] segment backward: output %44 (d_d) is gone at the end");
}

TEST_CASE("calls in place are checked") {
  const auto written = [](int slot) {
    return refusal(
        [slot](Program& p) { call(p.segments[1], "aten::add_.Tensor").args[0].value = Ref{slot}; });
  };
  CHECK(written(2).ends_with("aten::add_.Tensor writes %2 (a)"));
  CHECK(written(28).ends_with("aten::add_.Tensor writes %28 (seed)"));
  // The tensor lives on under the name of the result alone.
  CHECK(refusal([](Program& p) { p.segments[1].outputs.push_back(33); }) ==
        "[lower.check] segment backward: output %33 (d_sub) is gone at the end");
  CHECK(refusal([](Program& p) {
          Segment& s = p.segments[1];
          s.instrs[0].outs = {38};
        }).ends_with("%29 (div) is used before it is made"));
  CHECK(refusal([](Program& p) {
          Segment& s = p.segments[1];
          s.instrs.insert(s.instrs.begin() + 1, s.instrs[0]);
        }) == "[lower.check] segment backward, instruction 1: %29 (div) is made twice");
}

TEST_CASE("blocks, loops and the schedule are checked") {
  const Program right = program_of(test::alike(4));
  REQUIRE(right.segments[0].blocks.size() == 3);
  const size_t count = right.segments[0].instrs.size();
  const auto blocks = [&](size_t i, size_t from, size_t to) {
    Program p = right;
    p.segments[0].blocks[i].first = from;
    p.segments[0].blocks[i].last = to;
    return refusal(p);
  };
  const auto& b = right.segments[0].blocks;
  CHECK(blocks(1, b[1].first, b[1].last).empty());
  const std::string overlap = blocks(1, b[0].last - 1, b[1].last);
  CHECK(overlap == fmt::format("[lower.check] segment forward: block {} covers [{}, {}) of {} "
                               "instructions, after {}",
                               b[1].path, b[0].last - 1, b[1].last, count, b[0].last));
  CHECK_FALSE(blocks(1, b[1].first, b[1].first).empty());
  CHECK_FALSE(blocks(2, b[2].first, count + 1).empty());
  CHECK(blocks(2, b[2].first, count).empty());

  const auto loops = [&](std::vector<Loop> list) {
    Program p = right;
    p.segments[0].blocks.clear();
    p.segments[0].loops = std::move(list);
    return refusal(p);
  };
  CHECK(loops({{0, 2, 2}, {4, 1, count - 4}}).empty());
  CHECK(
      loops({{0, 2, 2}, {3, 1, 2}}) ==
      fmt::format("[lower.check] segment forward: a loop covers [3, 5) of {} instructions, after 4",
                  count));
  CHECK_FALSE(loops({{0, 0, 2}}).empty());
  CHECK_FALSE(loops({{0, 1, count + 1}}).empty());

  for (const auto& [kind, stage] : {std::pair{'W', 0}, {'F', 1}}) {
    Program p = right;
    Action action = p.schedule.front();
    action.kind = kind;
    action.stage = stage;
    p.schedule.push_back(action);
    CHECK(refusal(p) ==
          fmt::format("[lower.check] schedule: {} of stage {}, which has no such segment", kind,
                      stage));
  }
}
