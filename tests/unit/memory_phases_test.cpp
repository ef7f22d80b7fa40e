// Memory of a step phase by phase: strides against addresses counted one by one, gradients where
// they lie, and what comes of accumulation, sums over ranks and memory of the host.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/processor.h"
#include "lower/memory.h"
#include "lower/memory_phases.h"
#include "lower/strides.h"
#include "operators/room.h"
#include "plan/builder.h"
#include "support/graph_text.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;

namespace {

// Addresses of all elements in row-major order of their indices.
std::vector<int64_t> addresses(const Shape& shape, const Shape& strides) {
  std::vector<int64_t> out{0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> more;
    for (int64_t base : out)
      for (int64_t i = 0; i < shape[d]; ++i) more.push_back(base + i * strides[d]);
    out = std::move(more);
  }
  return out;
}

// All shapes of so many elements with at most `rank` dimensions.
void shapes_of(int64_t elements, size_t rank, Shape& so_far, std::vector<Shape>& out) {
  if (elements == 1) out.push_back(so_far);
  if (so_far.size() == rank) return;
  for (int64_t size = 1; size <= elements; ++size)
    if (elements % size == 0) {
      so_far.push_back(size);
      shapes_of(elements / size, rank, so_far, out);
      so_far.pop_back();
    }
}

// Whether some strides give these addresses in this shape.
bool fits(const Shape& shape, const std::vector<int64_t>& list) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = shape[d] > 1 ? list[static_cast<size_t>(step)] - list[0] : 0;
    step *= shape[d];
  }
  return addresses(shape, strides) == list;
}

lower::Program program_of(const GraphPtr& graph, int units, int zero = 0) {
  plan::Builder b(graph, 1, units);
  for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
  if (zero > 0) b.zero(zero);
  return lower_all(graph, std::make_shared<const plan::Plan>(b.finish("hand"))).ranks[0].program;
}

const std::vector<lower::Action> kOnce = {{'F', 0, 0}, {'B', 0, 0}};
const std::vector<lower::Action> kTwice = {{'F', 0, 0}, {'B', 0, 0}, {'F', 0, 1}, {'B', 0, 1}};

}  // namespace

TEST_CASE("a reshape moves nothing exactly where strides allow it") {
  std::vector<Shape> shapes;
  Shape none;
  shapes_of(12, 3, none, shapes);
  int views = 0, copies = 0;
  for (const Shape& shape : shapes) {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    do {  // every order of the dimensions in memory
      Shape turned, strides(shape.size());
      for (size_t d : order) turned.push_back(shape[d]);
      const Shape lying = lower::row_major(turned);
      for (size_t i = 0; i < order.size(); ++i) strides[order[i]] = lying[i];
      const auto list = addresses(shape, strides);
      for (const Shape& to : shapes) {
        INFO(to_string(shape) << " by " << to_string(strides) << " as " << to_string(to));
        const auto laid = lower::reshaped(shape, strides, to);
        CHECK(laid.has_value() == fits(to, list));
        if (laid) CHECK(addresses(to, *laid) == list);
        ++(laid ? views : copies);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
  CHECK(views > 100);
  CHECK(copies > 100);
}

TEST_CASE("gradients are there from the first micro-batch on") {
  for (const GraphPtr& graph : {perceptrons(3), transformer(2)}) {
    INFO(graph->name);
    const lower::Program program = program_of(graph, 1);
    const lower::Memory all = lower::memory(program);
    const lower::Phases once = lower::phases(program, kOnce),
                        twice = lower::phases(program, kTwice);
    CHECK(once.forward.gradients == 0);
    CHECK(once.step.gradients == all.gradients);
    CHECK(once.step.activations == 0);
    CHECK(once.backward.total() < all.gradients + all.peak);
    CHECK(once.forward.total() <= once.backward.total());
    // The second one has all of them, beside its activations.
    CHECK(twice.forward.gradients == all.gradients);
    CHECK(twice.forward.activations == once.forward.activations);
    CHECK(twice.backward.total() > once.backward.total());
    CHECK(twice.step.gradients == all.gradients);
  }
}

TEST_CASE("gradients that ranks sum lie in one tensor, made at the first of them") {
  const GraphPtr graph = perceptrons(3);
  const lower::Program alone = program_of(graph, 1), summed = program_of(graph, 2);
  const lower::Phases a = lower::phases(alone, kOnce), s = lower::phases(summed, kOnce);
  CHECK(s.backward.gradients == lower::memory(summed).gradients);
  CHECK(s.backward.total() > a.backward.total());
  CHECK(s.step.gradients == a.step.gradients);
  // Where they rest in shards, each is scattered as soon as it is there.
  const lower::Program cut = program_of(graph, 2, plan::Zero::gradients);
  CHECK(lower::phases(cut, kOnce).step.gradients == lower::memory(cut).gradients);
  CHECK(lower::phases(cut, kOnce).step.gradients < s.step.gradients);
  // On the host they take nothing of the device.
  const lower::Phases apart = lower::phases(summed, kTwice, /*apart=*/true);
  CHECK(apart.backward.gradients == 0);
  CHECK(apart.step.gradients == 0);
}

namespace {

// Bytes that are there, and how many of them are gradients.
using Point = std::pair<int64_t, int64_t>;

// What a program of one stage has, slot by slot as its instructions say; for graphs whose only view
// is the expanded seed.
struct Recount {
  Point forward, step;
  std::vector<Point> tops;  // all with the most

  Recount(const lower::Program& program, int micros, bool apart) : p(program) {
    for (int k = 0; k < micros; ++k) {
      live.clear();
      for (const lower::Segment& segment : p.segments) {
        for (const lower::Instr& instr : segment.instrs) run(instr, apart);
        if (segment.kind == lower::SegmentKind::forward) forward = std::max(forward, now());
      }
    }
    live.clear();
    step = now();
  }

 private:
  Point now() const {
    int64_t bytes = gradients;
    for (const auto& [slot, own] : live) bytes += own;
    return {bytes, gradients};
  }
  void note() {
    if (!tops.empty() && now().first < tops[0].first) return;
    if (!tops.empty() && now().first > tops[0].first) tops.clear();
    tops.push_back(now());
  }
  // The tensor of all gradients that are summed together is there from the first on.
  bool in_set(int parameter) {
    for (const lower::GradientSet& set : p.sets) {
      if (set.ranks.empty() ||
          std::count(set.parameters.begin(), set.parameters.end(), parameter) == 0)
        continue;
      if (made.insert(set.parameters[0]).second)
        for (int slot : set.parameters) gradients += bytes_of(p.slot(slot).type);
      return true;
    }
    return false;
  }
  void run(const lower::Instr& instr, bool apart) {
    const bool home = instr.into >= 0 && !apart && !has.contains(instr.into) && in_set(instr.into);
    for (int out : instr.outs)
      live[out] = instr.op == "aten::expand" || home ? 0 : bytes_of(p.slot(out).type);
    note();
    if (instr.kind == lower::InstrKind::release)
      for (const auto& arg : instr.args) live.erase(std::get<lower::Ref>(arg.value).id);
    if (instr.kind != lower::InstrKind::accumulate) return;
    const int value = std::get<lower::Ref>(instr.args[0].value).id;
    const bool owned = std::get<bool>(instr.args[1].value);
    const bool first = has.insert(instr.target).second;
    if (first && !apart && !in_set(instr.target)) gradients += bytes_of(p.slot(value).type);
    if (owned) live.erase(value);
    note();
  }

  const lower::Program& p;
  std::map<int, int64_t> live;
  std::set<int> has, made;
  int64_t gradients = 0;
};

}  // namespace

TEST_CASE("phases are what slots take one by one") {
  for (const auto& [name, graph] : {std::pair("alike", alike(3)), std::pair("linears", linears())})
    for (const int units : {1, 2})
      for (const int micros : {1, 2, 3})
        for (const bool apart : {false, true}) {
          INFO(name << " on " << units << ", " << micros << (apart ? " apart" : ""));
          const lower::Program program = program_of(graph, units);
          std::vector<lower::Action> order;
          for (int k = 0; k < micros; ++k) order.insert(order.end(), {{'F', 0, k}, {'B', 0, k}});
          const lower::Phases told = lower::phases(program, order, apart);
          const Recount want(program, micros, apart);
          const auto at = [](const lower::Phase& phase) {
            return Point(phase.total(), phase.gradients);
          };
          CHECK(at(told.forward) == want.forward);
          CHECK(at(told.step) == want.step);
          CHECK(std::count(want.tops.begin(), want.tops.end(), at(told.backward)) > 0);
          if (micros > 1) continue;
          const lower::Phases alone = lower::phases(program, {}, apart);
          CHECK(at(alone.backward) == at(told.backward));
          CHECK(at(alone.step) == at(told.step));
        }
}

TEST_CASE("in a pipeline gradients that were sent wait for whoever takes them") {
  const GraphPtr graph = alike(4);
  const int64_t sent = 4 * 6 * 8;  // what passes between stages
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1"})
    for (const int stages : {2, 4})
      for (const int micros : {1, 4}) {
        plan::Builder b(graph, stages, stages);
        std::vector<int> first;
        std::vector<std::vector<int>> devices{{0}};
        for (int i = 1; i < stages; ++i) {
          first.push_back(i * 16 / stages);
          devices.push_back({i});
        }
        b.stage(first, std::move(devices));
        for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
        b.schedule(schedule, micros, 1);
        const auto plan = std::make_shared<const plan::Plan>(b.finish("hand"));
        const Programs programs = lower_all(graph, plan);
        for (int rank = 0; rank < stages; ++rank) {
          INFO(schedule << " on " << stages << ", " << micros << " micro-batches, rank " << rank);
          const lower::Program& program = programs.ranks[static_cast<size_t>(rank)].program;
          const lower::Phases apart = lower::phases(program, program.schedule, true);
          const lower::MemoryParts parts = lower::memory_parts(program);
          int64_t now = 0, waiting = 0, most = 0, forward = 0;
          for (const lower::Action& action : program.schedule) {
            const auto kind = action.kind == 'F'   ? lower::SegmentKind::forward
                              : action.kind == 'B' ? lower::SegmentKind::backward
                                                   : lower::SegmentKind::weight;
            const lower::MemoryPart& part = parts.parts.at({action.stage, kind});
            most = std::max(most, now + waiting + part.rise());
            now += part.net;
            if (action.kind == 'F') forward = std::max(forward, now + waiting);
            if (action.kind != 'F') waiting = action.kind == 'B' && rank > 0 ? sent : 0;
          }
          CHECK(apart.backward.total() == most);
          CHECK(apart.backward.gradients == 0);
          CHECK(apart.forward.total() == forward);
          CHECK(apart.step.total() == 0);
          const lower::Phases own = lower::phases(program, program.schedule);
          CHECK(own.step.gradients == parts.gradients);
          CHECK(own.step.activations == 0);
          CHECK(own.backward.total() >= most);
          CHECK(own.backward.total() <= most + parts.gradients);
        }
      }
}

TEST_CASE("results stay until the end of the step, the loss does not") {
  const lower::Program program = program_of(convolutions(), 1);
  const int64_t predictions = 4 * 4 * 8;
  for (const bool apart : {false, true}) {
    CHECK(lower::phases(program, kOnce, apart).step.activations == predictions);
    CHECK(lower::phases(program, kTwice, apart).step.activations == 2 * predictions);
    CHECK(lower::phases(program, kTwice, apart).forward.activations ==
          lower::phases(program, kOnce, apart).forward.activations + predictions);
  }
  CHECK(lower::phases(program_of(alike(2), 1), kTwice).step.activations == 0);
}

TEST_CASE("gradients of a module's inputs are no results") {
  lower::Options options;
  options.embedded = true;
  const graph::Graph graph = read_graph(
      "graph \"Two\" training\ninput %x \"x\": float64[2, 3] grad\n"
      "input %z \"z\": float64[2, 3] grad\n%y = aten::mul.Tensor(self=%x, other=%z)\noutput %y\n");
  const lower::Program program = lower::lower(graph, options).program;
  REQUIRE(program.segments[1].outputs.size() == 2);
  CHECK(lower::phases(program, kTwice).step.activations == 0);
}

TEST_CASE("calls say what they take beside their results") {
  const TensorType half{{4, 8}, DType::bf16}, whole{{4, 8}, DType::f32};
  const auto of = [](std::string_view op, std::vector<graph::NamedArg> args,
                     const TensorType& type) {
    return operators::workspace(
        operators::CallView(op, args, [&](int) -> const TensorType& { return type; }));
  };
  using graph::ValueRef;
  CHECK(of("aten::mm", {{"self", ValueRef{0}}, {"mat2", ValueRef{1}}}, whole) == 0);
  CHECK(of("aten::mm", {{"self", ValueRef{0}}, {"mat2", ValueRef{1}}}, half) ==
        (packs_16_bit_products() ? 2048 + 4 * 64 : 0));
  const Shape group{0, 1};
  const auto gather = [&](int64_t dim, int64_t length) {
    return of("comm::all_gather",
              {{"self", ValueRef{0}}, {"dim", dim}, {"whole", length}, {"group", group}}, whole);
  };
  CHECK(gather(0, 8) == 0);         // parts lie as they come
  CHECK(gather(1, 16) == 2 * 128);  // joined out of them
  CHECK(gather(0, 7) == 2 * 128);
  CHECK(of("comm::reduce_scatter", {{"self", ValueRef{0}}, {"dim", int64_t{0}}, {"group", group}},
           whole) == 128);
}
