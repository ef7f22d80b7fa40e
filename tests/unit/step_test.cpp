// The step of an optimizer, on programs of small graphs: what it consists of, and by mutation that
// each fault is refused by name.
#include "lower/step.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "base/error.h"
#include "codegen/lua.h"
#include "lower/check_ranks.h"
#include "lower/lower.h"
#include "lower/passes.h"
#include "lower/skeleton.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

namespace {

// Of one rank of a plan on `plan_ngpus` devices in two scale units; the first layer is cut where a
// unit has two devices, the second is on both.
Program program(int rank, int plan_ngpus = 1, int zero = 0, int64_t set_bytes = 25 << 20,
                bool scatter = false, int units = 2, int groups = 1) {
  auto graph = test::linears({8, 6, 4});
  plan::Builder b(graph, plan_ngpus, units * plan_ngpus);
  if (plan_ngpus == 2) {
    b.partition(0, 1, 0, 2);
    for (int i : {1, 2}) b.replicate(i, 2);
  } else {
    for (int i : {0, 1, 2}) b.replicate(i, 1);
  }
  b.zero(zero);
  b.zero_groups(groups);
  if (scatter) b.zero_scatter();
  Options options;
  options.plan = std::make_shared<const plan::Plan>(b.finish("hand"));
  options.rank = rank;
  options.set_bytes = set_bytes;
  return lower::lower(*graph, options).program;
}

size_t find(const Program& p, StepKind kind, int n = 0) {
  for (size_t i = 0; i < p.step.size(); ++i)
    if (p.step[i].kind == kind && n-- == 0) return i;
  throw std::runtime_error("no " + std::string(name_of(kind)));
}

void erase(Program& p, StepKind kind, int n = 0) {
  p.step.erase(p.step.begin() + static_cast<std::ptrdiff_t>(find(p, kind, n)));
}

// Moves an instruction in front of another.
void move_before(Program& p, StepKind kind, StepKind target) {
  const StepInstr instr = p.step[find(p, kind)];
  erase(p, kind);
  p.step.insert(p.step.begin() + static_cast<std::ptrdiff_t>(find(p, target)), instr);
}

void refuses(const Program& p, const std::string& text) {
  CHECK_THROWS_WITH(check_step(p), Catch::Contains(text));
}

}  // namespace

TEST_CASE("a step sums, scales, measures, clips and updates each set of gradients once") {
  Program p = program(1);
  CHECK(to_text(p.step) ==
        "  sum set 0 over 0 1\n  scale set 0\n  norm set 0 held by 2\n  clip set 0\n"
        "  update set 0\n");
  check_step(p);
  CHECK(program(1, 1, 0, 300).sets.size() == 2);
  CHECK(to_text(p).find("step\n  sum set 0 over 0 1\n") != std::string::npos);
  CHECK(to_json(p).find(R"("kind":"norm")") != std::string::npos);
}

TEST_CASE("what several ranks hold counts for its part in the norm") {
  Program p = program(1, 2);
  REQUIRE(p.sets.size() == 1);
  CHECK(p.sets[0].ranks == std::vector<int>{1, 3});
  // The first weight is cut over two devices and held by two units, the second is on all four.
  CHECK(to_text(p.step).find("norm set 0 held by 2\n  norm set 0 held by 4\n") !=
        std::string::npos);
}

TEST_CASE("weights in shards are summed in backward and gathered by programs") {
  Program p = program(0, 1, plan::Zero::weights);
  CHECK(to_text(p.step) ==
        "  scale set 0\n  norm set 0 held by 1\n  clip set 0\n  update set 0\n"
        "  gather set 0 over 0 1\n");
  check_step(p);
}

TEST_CASE("slots in shards are updated there, and weights gathered after it") {
  const Program p = program(1, 1, plan::Zero::slots);
  CHECK(to_text(p.step) ==
        "  sum set 0 over 0 1\n  scale set 0\n  norm set 0 held by 2\n  clip set 0\n"
        "  update set 0\n  gather set 0 over 0 1\n");
  CHECK(p.shares[0].zero == 1);
  CHECK(p.shares[0].over == std::vector<int>{0, 1});
  check_step(p);
  const std::string text = codegen::to_lua(p);
  CHECK(text.find("function step.gather(o)\n  o:gather(1, dp)\nend\n") != std::string::npos);
  CHECK(text.find("optimizer slots in shards over ranks 0, 1") != std::string::npos);
}

TEST_CASE("a sum into shards counts each in the norm once") {
  const Program p = program(1, 1, plan::Zero::slots, 25 << 20, true);
  CHECK(to_text(p.step) ==
        "  scatter set 0 over 0 1\n  scale set 0\n  norm set 0 held by 1\n  clip set 0\n"
        "  update set 0\n  gather set 0 over 0 1\n");
  check_step(p);
}

TEST_CASE("shards lie inside of groups, and are summed across them") {
  const Program p = program(2, 1, plan::Zero::slots, 25 << 20, true, 4, 2);
  CHECK(to_text(p.step) ==
        "  scatter set 0 over 2 3\n  sum set 0 over 0 2\n  scale set 0\n  norm set 0 held by 2\n"
        "  clip set 0\n  update set 0\n  gather set 0 over 2 3\n");
  check_step(p);
  const Program q = program(3, 1, plan::Zero::gradients, 25 << 20, false, 4, 2);
  CHECK(to_text(q.step).find("  sum set 0 over 1 3\n") == 0);
  CHECK(to_text(q.step).find("gather set 0 over 2 3\n") != std::string::npos);
  check_step(q);
  CHECK_THROWS_WITH(program(0, 1, 1, 25 << 20, false, 4, 3),
                    Catch::Contains("3 ZeRO groups of 4 scale units; expected a divisor"));
  CHECK_THROWS_WITH(program(0, 1, 4), Catch::Contains("zero is 4; expected 0 to 3"));
}

TEST_CASE("gradients in shards are scattered in backward") {
  const Program p = program(0, 1, plan::Zero::gradients);
  CHECK(to_text(p.step) ==
        "  scale set 0\n  norm set 0 held by 1\n  clip set 0\n  update set 0\n"
        "  gather set 0 over 0 1\n");
  int scatters = 0;
  for (const Instr& instr : p.segments[1].instrs) {
    if (instr.op == "comm::scatter_gradients") {
      ++scatters;
      CHECK(instr.outs.size() == 2);
    }
    if (instr.kind != InstrKind::accumulate) continue;
    const Slot& parameter = p.slot(instr.target);
    CHECK(gradient_type(parameter) ==
          p.slot(std::get<graph::ValueRef>(instr.args[0].value).id).type);
    CHECK(numel(parameter.gradient) * 2 == numel(parameter.type.shape));
  }
  CHECK(scatters == 1);
  check_step(p);
}

TEST_CASE("gradients of a block in shards go in one message, of so many bytes at most") {
  const auto graph = test::perceptrons(3);
  const auto lowered = [&](int zero, int64_t bytes) {
    plan::Builder b(graph, 1, 2);
    for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
    b.zero(zero);
    Options options;
    options.plan = std::make_shared<const plan::Plan>(b.finish("hand"));
    options.set_bytes = bytes;
    test::Programs out{graph, options.plan, {}, std::make_shared<const Skeleton>(graph, options)};
    for (int r = 0; r < 2; ++r) out.ranks.push_back(out.skeleton->project(r));
    return out;
  };
  const test::Inputs inputs = test::random_inputs(*graph, 4, 5);
  const test::Outcome want = test::run(test::lower_all(graph), inputs);
  // A block has 6 weights, of 12·6 elements at most.
  const std::pair<int64_t, size_t> cases[] = {{25 << 20, 3}, {12 * 6 * 8 + 12 * 8, 9}, {0, 0}};
  for (const auto& [bytes, joined] : cases) {
    INFO(bytes);
    const test::Programs programs = lowered(plan::Zero::gradients, bytes);
    CHECK(programs.skeleton->check());
    const test::Outcome got = test::run(programs, inputs);
    CHECK(test::difference(want, got) == "");
    CHECK(test::miscounted(programs, got) == "");
    CHECK(test::unmeasured(programs, got) == "");
    const Segment& backward = programs.ranks[0].program.segments[1];
    size_t calls = 0, gradients = 0;
    for (const Instr& instr : backward.instrs) {
      if (instr.op == "comm::scatter_gradient") ++gradients;
      if (instr.op != "comm::scatter_gradients") continue;
      ++calls;
      gradients += instr.outs.size();
    }
    CHECK(calls == joined);
    CHECK(gradients >= 3 * 6 + 1);
    CHECK(backward.blocks.size() == 3);
  }
  // Of weights that rest in shards each is scattered alone: none of them waits whole for others.
  for (const Instr& instr :
       lowered(plan::Zero::weights, 25 << 20).ranks[0].program.segments[1].instrs)
    CHECK(instr.op != "comm::scatter_gradients");
}

TEST_CASE("a faulty step over shards is refused") {
  Program p = program(2, 1, plan::Zero::slots, 25 << 20, true, 4, 2);
  SECTION("scatter left out") {
    erase(p, StepKind::scatter);
    refuses(p, "sum of set 0 (fc1.weight … fc0.weight) before its scatter");
  }
  SECTION("scatter twice") {
    p.step.insert(p.step.begin(), p.step.front());
    refuses(p, "scatter of set 0 (fc1.weight … fc0.weight) twice");
  }
  SECTION("scatter after the sum") {
    std::swap(p.step[0], p.step[1]);
    refuses(p, "sum of set 0 (fc1.weight … fc0.weight) before its scatter");
  }
  SECTION("scatter over the wrong ranks") {
    p.step.front().ranks = {0, 2};
    refuses(p,
            "scatter of set 0 (fc1.weight … fc0.weight) over ranks 0,2; it rests in shards over "
            "2,3");
  }
  SECTION("sum across groups left out") {
    erase(p, StepKind::sum);
    refuses(p, "scale of set 0 (fc1.weight … fc0.weight) before its sum");
  }
  SECTION("gather left out") {
    erase(p, StepKind::gather);
    refuses(p, "rests in shards, and the step of set 0 (fc1.weight … fc0.weight) does not gather");
  }
  SECTION("gather twice") {
    p.step.push_back(p.step.back());
    refuses(p, "gather of set 0 (fc1.weight … fc0.weight) twice");
  }
  SECTION("gather before the update") {
    move_before(p, StepKind::gather, StepKind::update);
    refuses(p, "gather of set 0 (fc1.weight … fc0.weight) before its update");
  }
  SECTION("gather over the wrong ranks") {
    p.step.back().ranks = {0, 2};
    refuses(p, "gather of set 0 (fc1.weight … fc0.weight) over ranks 0,2; no weight");
  }
  SECTION("a norm that counts a shard for half") {
    p.step[find(p, StepKind::norm)].holders = 4;
    refuses(p, "takes gradients that 4 ranks hold; there are none");
  }
  SECTION("a set whose shards lie elsewhere") {
    p.sets[0].over = {0, 2};
    refuses(p,
            "set 0 has states of fc1.weight in shards over ranks 0,2 (zero 1); they are over 2,3 "
            "(zero 1)");
  }
  SECTION("a set that keeps gradients whole") {
    p.sets[0].scatter = false;
    refuses(p, "set 0 sums the gradient of fc1.weight, which rests in shards");
  }
}

TEST_CASE("the step of one device has no sum") {
  const Program p = lower::lower(*test::linears({8, 6, 4}), {}).program;
  CHECK(to_text(p.step) == "  scale set 0\n  norm set 0 held by 1\n  clip set 0\n  update set 0\n");
}

TEST_CASE("a faulty step is refused") {
  Program p = program(0);
  SECTION("sum twice") {
    p.step.insert(p.step.begin(), p.step.front());
    refuses(p, "sum of set 0 (fc1.weight … fc0.weight) twice");
  }
  SECTION("sum left out") {
    erase(p, StepKind::sum);
    refuses(p, "scale of set 0 (fc1.weight … fc0.weight) before its sum");
  }
  SECTION("sum over the wrong group") {
    p.step.front().ranks = {0};
    refuses(p, "over ranks 0; its addends are on ranks 0,1");
  }
  SECTION("a set of the wrong group") {
    p.sets[0].ranks = p.step.front().ranks = {0, 1, 2};
    refuses(p,
            "set 0 sums the gradient of fc1.weight over ranks 0,1,2; its addends are on ranks "
            "0,1");
  }
  SECTION("scale left out") {
    erase(p, StepKind::scale);
    refuses(p, "norm of set 0 (fc1.weight … fc0.weight) before its scale");
  }
  SECTION("scale twice") {
    const StepInstr scale = p.step[find(p, StepKind::scale)];
    p.step.insert(p.step.begin() + 1, scale);
    refuses(p, "scale of set 0 (fc1.weight … fc0.weight) twice");
  }
  SECTION("a slice that counts twice in the norm") {
    p.step.insert(p.step.begin() + 3, p.step[find(p, StepKind::norm)]);
    refuses(p, "gradients that 2 ranks hold count twice in the norm");
  }
  SECTION("a slice that counts as if one rank held it") {
    p.step[find(p, StepKind::norm)].holders = 1;
    refuses(p, "takes gradients that 1 ranks hold; there are none");
  }
  SECTION("norm left out") {
    erase(p, StepKind::norm);
    refuses(p, "gradients that 2 ranks hold are not in the norm");
  }
  SECTION("clip after update") {
    move_before(p, StepKind::update, StepKind::clip);
    refuses(p, "update of set 0 (fc1.weight … fc0.weight) before its clip");
  }
  SECTION("update before sum") {
    move_before(p, StepKind::update, StepKind::sum);
    refuses(p, "update of set 0 (fc1.weight … fc0.weight) before its clip");
  }
  SECTION("clip left out") {
    erase(p, StepKind::clip);
    refuses(p, "update of set 0 (fc1.weight … fc0.weight) before its clip");
  }
  SECTION("update left out") {
    erase(p, StepKind::update);
    refuses(p, "no update of set 0 (fc1.weight … fc0.weight)");
  }
  SECTION("update twice") {
    p.step.push_back(p.step.back());
    refuses(p, "update of set 0 (fc1.weight … fc0.weight) twice");
  }
  SECTION("a gradient in two sets") {
    p.sets.push_back(p.sets[0]);
    refuses(p, "the gradient of fc1.weight is in two sets");
  }
  SECTION("a gradient in no set") {
    p.sets[0].parameters.pop_back();
    refuses(p, "the gradient of fc0.weight is in no set");
  }
  SECTION("a set that is not there") {
    p.step.back().set = 7;
    refuses(p, "update of set 7; there are 1");
  }
}

TEST_CASE("a sum that comes after another set was scaled is refused") {
  Program p = program(0, 1, 0, 300);
  REQUIRE(p.sets.size() == 2);
  std::swap(p.step[1], p.step[2]);  // sum of the second, scale of the first
  refuses(p, "sum of set 1 (fc0.weight … fc0.weight) after scale");
}

TEST_CASE("shards that nobody gathers are refused") {
  Program p = program(0, 1, plan::Zero::weights);
  SECTION("left out") {
    erase(p, StepKind::gather);
    refuses(p,
            "fc0.weight rests in shards, and the step of set 0 (fc0.weight … fc1.weight) does "
            "not gather it");
  }
  SECTION("over the wrong ranks") {
    p.step[find(p, StepKind::gather)].ranks = {0};
    refuses(p, "over ranks 0; no weight of it rests in shards of these");
  }
  SECTION("before the update") {
    move_before(p, StepKind::gather, StepKind::update);
    refuses(p, "gather of set 0 (fc0.weight … fc1.weight) before its update");
  }
}

TEST_CASE("sums start in backward after their last addends") {
  Program p = program(0, 1, 0, 300);
  Segment& backward = p.segments[1];
  REQUIRE(backward.sums.size() == 2);
  check_step(p);
  backward.sums[0].after -= 2;
  refuses(p, "the sum of fc1.weight starts before its last addend");
}

TEST_CASE("ranks that sum other sets are refused") {
  auto graph = test::linears({8, 6, 4});
  plan::Builder b(graph, 1, 2);
  for (int i : {0, 1, 2}) b.replicate(i, 1);
  const plan::Plan plan = b.finish("hand");
  Program a = program(0), c = program(1);
  check_ranks({&a, &c}, plan);
  std::swap(c.sets[0].parameters[0], c.sets[0].parameters[1]);
  CHECK_THROWS_WITH(check_ranks({&a, &c}, plan),
                    Catch::Contains("ranks 0 and 1 sum other sets of gradients over ranks 0,1"));
}

TEST_CASE("weight gradients are written where they lie") {
  const Program p = program(0);
  int products = 0;
  for (const Instr& instr : p.segments[1].instrs)
    if (instr.op == "nnscaler::linear_weight") {
      ++products;
      CHECK(instr.into >= 0);
      CHECK(p.slot(instr.into).type == p.slot(instr.outs[0]).type);
    }
  CHECK(products == 2);
}

TEST_CASE("the file of a program has its step") {
  const std::string text = codegen::to_lua(program(0, 1, 0, 300));
  CHECK(text.find("local dp = rt.group { 0, 1 }") != std::string::npos);
  CHECK(text.find("function step.sum(o)\n  for k = 1, 2 do o:sum(k, dp) end\nend\n") !=
        std::string::npos);
  CHECK(text.find("total = total + o:squares(k, 2) / 2") != std::string::npos);
  CHECK(text.find("  if ctx.last then start_sums(ctx, 1) end\n") != std::string::npos);
  CHECK(text.find("into(g.fc0, 'weight')") != std::string::npos);
  CHECK(text.find("step = step }") != std::string::npos);
}
