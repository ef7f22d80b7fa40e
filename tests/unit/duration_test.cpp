// Seconds of instructions and of a step against closed forms: messages and collectives inside hosts
// and across them, work of calls, what weights take once a step, and how a step is put together.
#include "lower/duration.h"

#include <catch2/catch.hpp>

#include <functional>

#include "cost/profile.h"
#include "lower/schedule/pipeline.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::lower;

using operators::Communication;

namespace {

// Hosts of four devices, on which each kind of cost has digits of its own.
cost::Hardware lab() {
  cost::Hardware on;
  on.flops = {{DType::f32, 1e9}, {DType::f64, 5e8}};
  on.memory_bandwidth = 2e9;
  on.memory_efficiency = 0.5;
  on.half_filled = 16;
  on.start = 1e-9;
  on.links = {3e-5, 2e-6, 1e-9, 7, 4};
  return on;
}

double by_hand(int64_t bytes, int messages, bool across) {
  return 3e-5 + messages * 2e-6 + static_cast<double>(bytes) * 1e-9 * (across ? 7 : 1);
}

// A call on tensors of these types: the operands first, then the results.
struct Call {
  Program program;
  Instr instr;

  Call(std::string op, const std::vector<TensorType>& operands,
       const std::vector<TensorType>& results, std::vector<NamedArg> more = {}) {
    instr.op = std::move(op);
    const auto slot = [&](const TensorType& type) {
      const int id = static_cast<int>(program.slots.size());
      program.slots.push_back({id, type, SlotRole::activation, "", {}, {}});
      return id;
    };
    const auto names = [&](size_t i) {
      static const char* const kNames[] = {"self", "other"};
      return std::string(kNames[i]);
    };
    for (size_t i = 0; i < operands.size(); ++i)
      instr.args.push_back({names(i), Ref{slot(operands[i])}});
    for (const TensorType& type : results) instr.outs.push_back(slot(type));
    for (NamedArg& arg : more) instr.args.push_back(std::move(arg));
  }
  Seconds seconds(const cost::Hardware& on, SegmentKind in = SegmentKind::forward) {
    program.segments = {Segment{"forward", in, 0, {}, {}, {}, {}, {instr}, {}, {}, {}, {}}};
    return seconds_of(program, Storage(program), in, instr, on);
  }
  Work work(SegmentKind in = SegmentKind::forward) {
    program.segments = {Segment{"forward", in, 0, {}, {}, {}, {}, {instr}, {}, {}, {}, {}}};
    return work_of(program, Storage(program), in, instr);
  }
};

const TensorType kTable{{4, 6}, DType::f32};

}  // namespace

TEST_CASE("messages take the time of what leaves, and of the links that it takes", "[cost]") {
  // To a rank: start and length along each dimension.
  const auto to = [](const std::vector<int64_t>& ranks) {
    Shape moves;
    for (int64_t rank : ranks) moves.insert(moves.end(), {rank, 0, 4, 3, 3});
    return moves;
  };
  const int64_t one = 4 * 3 * 4;
  const std::pair<std::vector<int64_t>, double> cases[] = {{{2}, by_hand(one, 1, false)},
                                                           {{2, 3}, by_hand(2 * one, 2, false)},
                                                           {{4}, by_hand(one, 1, true)},
                                                           {{2, 5}, by_hand(2 * one, 2, true)},
                                                           {{5, 2}, by_hand(2 * one, 2, true)},
                                                           {{1, 2}, by_hand(one, 1, false)},
                                                           {{2, 1}, by_hand(one, 1, false)},
                                                           {{1}, 0},
                                                           {{}, 0}};
  for (const auto& [ranks, seconds] : cases)
    for (const char* op : {"comm::send", "comm::move"}) {
      INFO(op << " to " << to_string(to(ranks)));
      const bool send = std::string(op) == "comm::send";
      Call call(op, {kTable}, {}, {{send ? "moves" : "sends", to(ranks)}});
      call.program.rank = 1;
      const Seconds got = call.seconds(lab());
      CHECK(got.communication == Approx(seconds).epsilon(1e-12));
      CHECK(got.work == 0);
    }
  // Who waits for a message pays nothing: it counts with its sender.
  CHECK(Call("comm::receive", {}, {kTable}, {{"moves", to({0})}}).seconds(lab()).all() == 0);
}

TEST_CASE("collectives take the closed forms of rings over what is whole", "[cost]") {
  const TensorType part{{4, 2}, DType::f32};
  const int64_t whole = 4 * 6 * 4, third = whole / 3;
  struct Kind {
    const char* op;
    TensorType from, to;
    int64_t sent;
    int messages;
  };
  const Kind kinds[] = {{"comm::all_reduce", kTable, kTable, 4 * third, 4},
                        {"comm::all_gather", part, kTable, 2 * third, 2},
                        {"comm::reduce_scatter", kTable, part, 2 * third, 2},
                        {"comm::scatter_gradient", kTable, part, 2 * third, 2},
                        {"comm::all_to_all", kTable, kTable, 2 * third, 2}};
  for (const Kind& kind : kinds)
    for (const Shape& group : {Shape{0, 1, 2}, Shape{1, 2, 4}, Shape{4, 5, 6}, Shape{0, 4, 8}}) {
      INFO(kind.op << " over " << to_string(group));
      Call call(kind.op, {kind.from}, {kind.to}, {{"group", group}});
      const bool across = group[0] / 4 != group[2] / 4;
      const Seconds got = call.seconds(lab());
      CHECK(got.communication == Approx(by_hand(kind.sent, kind.messages, across)).epsilon(1e-12));
      CHECK(got.by_origin[static_cast<size_t>(cost::Origin::modelled)] == got.communication);
    }
  // A list of gradients in one message: at most as long as each alone.
  const TensorType column{{9}, DType::f64};
  Call list("comm::scatter_gradients", {kTable, column}, {part, {{3}, DType::f64}},
            {{"dims", Shape{1, 0}}, {"group", Shape{0, 1, 2}}});
  CHECK(list.seconds(lab()).communication ==
        Approx(by_hand(2 * third, 2, false) + by_hand(2 * 3 * 8, 2, false)).epsilon(1e-12));
}

TEST_CASE("a profile's links are asked by collective, ranks and bytes", "[cost]") {
  cost::Hardware on = lab();
  auto profile = std::make_shared<cost::Profile>();
  const double whole = 4 * 6 * 4;
  double seconds = 1;
  std::map<std::string, double> of;
  for (const char* name : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}) {
    profile->links[{name, 3}] = {{whole, of[name] = ++seconds}};
    profile->links[{name, 2}] = {{whole, 100}};
  }
  profile->links[{"send", 2}] = {{48, of["send"] = ++seconds}, {96, 2 * seconds}};
  on.profile = profile;
  const TensorType part{{4, 2}, DType::f32};
  const NamedArg group{"group", Shape{0, 1, 2}};
  const auto told = [&](Call call, double expected, cost::Origin origin = cost::Origin::measured) {
    INFO(call.instr.op);
    const Seconds got = call.seconds(on);
    CHECK(got.communication == expected);
    CHECK(got.by_origin[static_cast<size_t>(origin)] == expected);
  };
  told(Call("comm::all_reduce", {kTable}, {kTable}, {group}), of["all_reduce"]);
  told(Call("comm::all_gather", {part}, {kTable}, {group}), of["all_gather"]);
  told(Call("comm::reduce_scatter", {kTable}, {part}, {group}), of["reduce_scatter"]);
  told(Call("comm::scatter_gradient", {kTable}, {part}, {group}), of["reduce_scatter"]);
  told(Call("comm::all_to_all", {kTable}, {kTable}, {group}), of["all_to_all"]);
  told(Call("comm::send", {kTable}, {}, {{"moves", Shape{3, 0, 4, 0, 3}}}), of["send"]);
  told(Call("comm::send", {kTable}, {}, {{"moves", Shape{3, 0, 4, 0, 3, 2, 0, 2, 0, 3}}}),
       1.5 * of["send"], cost::Origin::interpolated);
  CHECK(lower::collective_seconds(Communication::all_gather, kTable, {0, 1, 2}, on) ==
        of["all_gather"]);
}

TEST_CASE("work of a call is what it reads and makes", "[cost]") {
  const TensorType small{{6}, DType::f32}, wide{{4, 6}, DType::f64};
  // Operands and results; the largest tensor, wherever it stands; the dtype of the first result.
  for (const auto& [a, b] : {std::pair(kTable, small), std::pair(small, kTable)}) {
    const Work sum = Call("aten::add.Tensor", {a, b}, {wide}).work();
    CHECK(sum.bytes == 24 * 4 + 6 * 4 + 24 * 8);
    CHECK(sum.largest == 24);
    CHECK(sum.dtype == DType::f64);
    CHECK(sum.flops == 24);
  }
  CHECK(Call("aten::sum", {kTable}, {{{}, DType::f32}}).work().largest == 24);
  // A result that nobody wants is not made.
  Call two("aten::max.dim", {kTable}, {small, {{6}, DType::i64}}, {{"dim", int64_t{0}}});
  CHECK(two.work().bytes == 24 * 4 + 6 * 4 + 6 * 8);
  two.instr.outs[0] = -1;
  CHECK(two.work().bytes == 24 * 4 + 6 * 8);
  CHECK(two.work().dtype == DType::i64);
  // A view takes nothing, a copy something, in forward; in place it reads and writes.
  Call view("aten::transpose.int", {kTable}, {{{6, 4}, DType::f32}},
            {{"dim0", int64_t{0}}, {"dim1", int64_t{1}}});
  CHECK(view.work().bytes == 0);
  CHECK(view.seconds(lab()).all() == 0);
  CHECK(Call("aten::add_.Tensor", {kTable, kTable}, {kTable}).work().bytes == 3 * 24 * 4);
  Call accumulate("", {kTable}, {});
  accumulate.instr.kind = InstrKind::accumulate;
  const Work added = accumulate.work(SegmentKind::backward);
  CHECK(added.bytes == 3 * 24 * 4);
  CHECK(added.largest == 24);
  CHECK(accumulate.seconds(lab()).work == Approx(3 * 24 * 4 / 1e9));
  CHECK(accumulate_seconds(kTable, lab()) == Approx(3 * 24 * 4 / 1e9));
  // Releases take nothing, whatever they name.
  Call release("", {kTable}, {});
  release.instr.kind = InstrKind::release;
  CHECK(release.seconds(lab()).all() == 0);
}

TEST_CASE("a reshape that copies counts in forward", "[cost]") {
  Call turned("aten::transpose.int", {kTable}, {{{6, 4}, DType::f32}},
              {{"dim0", int64_t{0}}, {"dim1", int64_t{1}}});
  Program& program = turned.program;
  program.slots.push_back({2, {{24}, DType::f32}, SlotRole::activation, "", {}, {}});
  Instr flat;
  flat.op = "aten::reshape";
  flat.args = {{"self", Ref{1}}, {"shape", Shape{24}}};
  flat.outs = {2};
  program.segments.resize(1);
  program.segments[0].instrs = {turned.instr, flat};
  const Storage storage(program);
  CHECK(work_of(program, storage, SegmentKind::forward, flat).bytes == 2 * 24 * 4);
  CHECK(work_of(program, storage, SegmentKind::backward, flat).bytes == 0);
  program.segments[0].instrs = {flat};
  CHECK(work_of(program, Storage(program), SegmentKind::forward, flat).bytes == 0);
}

TEST_CASE("a call that runs again takes its flops three times", "[cost]") {
  Call once("aten::mm", {kTable}, {{{4, 5}, DType::f32}});
  once.program.slots.push_back({2, {{6, 5}, DType::f32}, SlotRole::activation, "", {}, {}});
  once.instr.args.push_back({"mat2", Ref{2}});
  CHECK(once.work().flops == 2 * 4 * 6 * 5);
  Call again = once;
  again.instr.op = "vjp::aten::mm";
  again.instr.args.push_back({"grad_outputs", graph::Arg{}});
  again.instr.args.push_back({"needs", graph::Arg{}});
  CHECK(again.work(SegmentKind::backward).flops == 3 * 2 * 4 * 6 * 5);
}

TEST_CASE("a weight takes its sum and its update once a step", "[cost]") {
  cost::Hardware on = lab();
  const StepSettings settings{.bucket_bytes = 960, .state = 1.5, .optimizer = "adam"};
  const double bytes = 4 * 6 * 4;
  const double update = (3 + 2 * 1.5) / 1e9 * bytes;
  const StepPart alone = step_part(kTable, {}, on, settings);
  CHECK(alone.sum == 0);
  CHECK(alone.update == Approx(update).epsilon(1e-12));
  CHECK(step_part(kTable, {2}, on, settings).sum == 0);
  for (const bool across : {false, true}) {
    const StepPart part = step_part(kTable, {0, 1, across ? 4 : 2}, on, settings);
    const double sent = 2.0 * 2 / 3 * bytes * 1e-9 * (across ? 7 : 1);
    CHECK(part.sum == Approx((3e-5 + 4 * 2e-6) / 10 + sent).epsilon(1e-12));
    CHECK(part.update == alone.update);
  }
  // By a profile: its part of what a bucket takes, and the optimizer's own rate.
  auto profile = std::make_shared<cost::Profile>();
  profile->links[{"all_reduce", 3}] = {{960, 5.0}};
  profile->links[{"all_reduce", 1}] = {{960, 9.0}};
  profile->steps["adam"] = {0.25, 100};
  on.profile = profile;
  const StepPart measured = step_part(kTable, {0, 1, 2}, on, settings);
  CHECK(measured.sum == Approx(5.0 / 10).epsilon(1e-12));
  CHECK(measured.update == Approx(0.25 * bytes).epsilon(1e-12));
  CHECK(step_part(kTable, {0}, on, settings).sum == 0);
  CHECK(step_part(kTable, {}, on, {.optimizer = "other"}).update == Approx(7 / 1e9 * bytes));
}

TEST_CASE("the rank of a class that updates most tells what an update takes", "[cost]") {
  const auto graph = test::perceptrons(2);
  const double rate = (3 + 2 * 2) / 1e9;
  for (const int units : {1, 2, 3, 5})
    for (const int zero :
         {plan::Zero::none, plan::Zero::slots, plan::Zero::gradients, plan::Zero::weights})
      for (const bool whole : {false, true}) {
        INFO(units << " units, ZeRO " << zero << (whole ? ", undivided" : ""));
        plan::Builder b(graph, 1, units);
        for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
        b.zero(zero);
        if (whole)
          for (int id : graph->parameters) b.undivided(graph->value({id}).name);
        Options options;
        options.plan = std::make_shared<const plan::Plan>(b.finish("hand"));
        const Skeleton skeleton(graph, options);
        // Bytes of each rank, from its Program.
        std::map<int, int64_t> own;
        int64_t sum = 0, all = 0;
        for (int rank = 0; rank < units; ++rank) {
          const Program p = skeleton.project(rank).program;
          for (size_t i = 0; i < p.parameters.size(); ++i) {
            const Slot& slot = p.slot(p.parameters[i]);
            const Share& share = p.shares[i];
            const auto at = std::find(share.over.begin(), share.over.end(), rank);
            const bool part = at != share.over.end() && !share.sharded();
            const Range range = part ? share.part(static_cast<int>(at - share.over.begin()))
                                     : Range{0, slot.type.shape[0]};
            const int64_t length = part ? share.length : slot.type.shape[0];
            own[rank] += bytes_of(slot.type) / std::max<int64_t>(1, length) * range.length();
          }
          sum += own[rank];
        }
        for (int id : graph->parameters) all += bytes_of(graph->value({id}).type);
        CHECK(sum == (zero == plan::Zero::none ? units * all : all));
        for (const ClassCost& of : class_costs(skeleton, lab(), {.state = 2})) {
          int64_t most = 0;
          for (int rank : of.ranks) most = std::max(most, own[rank]);
          CHECK(of.updated == most);
          CHECK(of.once.update == Approx(rate * static_cast<double>(most)));
        }
      }
}

namespace {

// A class of ranks that holds and takes what one says.
ClassCost class_of(std::vector<int> ranks, int stage, double forward, double backward,
                   double weight, int64_t saved, int64_t rise, int64_t rests) {
  ClassCost out{.ranks = std::move(ranks)};
  const auto part = [&](SegmentKind kind, double seconds, MemoryPart memory) {
    out.parts[{stage, kind}] = {seconds, 0, {}};
    out.memory.sequence.emplace_back(stage, kind);
    out.memory.parts[{stage, kind}] = std::move(memory);
  };
  const bool apart = weight > 0;
  part(SegmentKind::forward, forward, {.tops = {{-1, rise}}, .net = saved, .saved = saved});
  part(SegmentKind::backward, backward,
       {.tops = {{-1, rise}}, .net = apart ? 0 : -saved, .last = !apart});
  if (apart) part(SegmentKind::weight, weight, {.tops = {}, .net = -saved, .last = true});
  out.memory.rank = out.ranks[0];
  out.memory.parameters = rests;
  out.updated = rests;
  return out;
}

plan::Plan stages_of(int stages, const std::string& schedule, int micros) {
  const auto graph = test::alike(4);
  plan::Builder b(graph, stages, stages);
  std::vector<int> first;
  std::vector<std::vector<int>> devices{{0}};
  for (int i = 1; i < stages; ++i) {
    first.push_back(4 * i);
    devices.push_back({i});
  }
  if (stages > 1) b.stage(first, devices);
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  b.schedule(schedule, micros, 1);
  return b.finish("hand");
}

}  // namespace

TEST_CASE("a step on one stage repeats its micro-batches, then sums and updates", "[cost]") {
  const plan::Plan plan = stages_of(1, "1f1b", 3);
  std::vector<ClassCost> classes{class_of({0, 1}, 0, 2, 3, 0, 50, 80, 100),
                                 class_of({2}, 0, 1, 4.5, 0, 60, 70, 120)};
  classes[0].once = {0.25, 0.5};
  classes[1].once = {0.125, 0.25};
  const StepSettings settings{.micro_batches = 3, .state = 2};
  const StepCost cost = step_cost(classes, plan, settings);
  // The slowest rank of each part, and of the step.
  CHECK(cost.forward.all() == 2);
  CHECK(cost.backward.all() == 4.5);
  CHECK(cost.once.sum == 0.25);
  CHECK(cost.once.update == 0.5);
  CHECK(cost.seconds == 3 * 6.5 + 0.75);
  REQUIRE(cost.line.size() == 1);
  REQUIRE(cost.line[0].size() == 6);
  for (size_t i = 0; i < 3; ++i) {
    const double begin = 6.5 * static_cast<double>(i);
    const Timed &f = cost.line[0][2 * i], &b = cost.line[0][2 * i + 1];
    CHECK(f.action == Action{'F', 0, static_cast<int>(i)});
    CHECK(b.action == Action{'B', 0, static_cast<int>(i)});
    CHECK(f.start == begin);
    CHECK(f.stop == begin + 2);
    CHECK(b.start == begin + 2);
    CHECK(b.stop == begin + 6.5);
  }
  // Memory is that of the rank that holds most: with its states, and its backward on what is kept.
  const int64_t first = 100 + (50 + 80) + 200, second = 120 + (60 + 70) + 240;
  CHECK(cost.total == second);
  CHECK(cost.resting == 120 + 240);
  CHECK(cost.saved == 60);
  REQUIRE(cost.ranks.size() == 2);
  CHECK(cost.ranks[0].memory.total() + cost.ranks[0].state == first);
  CHECK(cost.ranks[1].state == 240);
  CHECK(cost.ranks[0].ranks == 2);
  CHECK(cost.ranks[1].rank == 2);
  // The same in the other order of classes.
  std::swap(classes[0], classes[1]);
  const StepCost turned = step_cost(classes, plan, settings);
  CHECK(turned.total == second);
  CHECK(turned.saved == 60);
  CHECK(turned.seconds == cost.seconds);
  CHECK(turned.once.sum == 0.25);
  // Without gradients there are forwards alone.
  const StepCost only =
      step_cost({class_of({0}, 0, 2, 0, 0, 0, 10, 10)}, stages_of(1, "1f1b", 2), {2});
  CHECK(only.line[0].size() == 2);
  CHECK(only.seconds == 4);
}

TEST_CASE("a step of a pipeline follows its schedule, in time and in memory", "[cost]") {
  for (const char* name : {"gpipe", "1f1b", "zb_h1"})
    for (const int micros : {2, 4, 5}) {
      INFO(name << " of " << micros);
      const bool apart = std::string(name) == "zb_h1";
      const plan::Plan plan = stages_of(2, name, micros);
      const std::vector<ClassCost> classes{
          class_of({0}, 0, 2, apart ? 2 : 3, apart ? 1 : 0, 50, 80, 100),
          class_of({1}, 1, 3, apart ? 1 : 4, apart ? 3 : 0, 70, 75, 90)};
      const StepCost cost = step_cost(classes, plan, {.micro_batches = micros, .state = 1});
      const Schedule schedule = schedule_of(plan, micros);
      const std::vector<StageTimes> times = {{2, apart ? 2.0 : 3.0, apart ? 1.0 : 0.0},
                                             {3, apart ? 1.0 : 4.0, apart ? 3.0 : 0.0}};
      double last = 0;
      for (const auto& line : time_line(schedule, times))
        for (const Timed& part : line) last = std::max(last, part.stop);
      CHECK(cost.seconds == last);
      CHECK(cost.forward.all() == 5);
      CHECK(cost.backward.all() == 7);
      // By hand: what each rank holds while it goes through its order.
      for (size_t rank = 0; rank < 2; ++rank) {
        const int64_t saved = rank == 0 ? 50 : 70, rise = rank == 0 ? 80 : 75;
        int64_t held = 0, most = 0;
        for (const Action& action : schedule.orders[rank]) {
          if (action.kind != 'W') most = std::max(most, held + rise);
          held += action.kind == 'F' ? saved : action.kind == (apart ? 'W' : 'B') ? -saved : 0;
        }
        const RankAccount& account = cost.ranks[rank];
        CHECK(account.row == static_cast<int>(rank));
        CHECK(account.memory.peak == most);
        CHECK(account.memory.saved == saved);
        REQUIRE(account.course.size() == schedule.orders[rank].size());
        int64_t top = 0;
        for (const MemoryAt& at : account.course) top = std::max(top, at.top);
        CHECK(top == most);
        CHECK(account.course.back().after == 0);
      }
    }
}
