// Sights: what slots hold of the values of a graph, put together over all ranks of a plan, is what
// one device computes, forward and gradients.
#include <catch2/catch.hpp>

#include <map>
#include <tuple>

#include "plan/builder.h"
#include "support/models.h"
#include "support/rank.h"

using namespace nns;
using namespace nns::test;
using plan::Builder;

namespace {

// Of a value or gradient: id, whether a gradient, reader, micro-batch.
using Key = std::tuple<int, bool, int, int>;
struct Part {
  int rank;
  lower::Piece piece;
  Array data;
};
using Forms = std::map<Key, std::map<std::string, std::vector<Part>>>;  // by layout

Forms forms_of(const Programs& programs, Inputs inputs) {
  std::vector<std::multimap<std::tuple<const lower::Segment*, int, int>, lower::Seen>> seen;
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    auto& of_rank = seen.emplace_back();
    for (const lower::Seen& s : programs.skeleton->seen(static_cast<int>(r)))
      of_rank.emplace(
          std::tuple(&programs.ranks[r].program.segments.at(static_cast<size_t>(s.segment)), s.call,
                     s.out),
          s);
  }
  Forms forms;
  inputs.watch = [&](Watched w) {
    const auto [first, last] =
        seen.at(static_cast<size_t>(w.rank)).equal_range({w.segment, w.call, w.out});
    for (auto it = first; it != last; ++it) {
      const lower::Seen& s = it->second;
      forms[{s.value, s.gradient, s.reader, w.micro}][s.layout].push_back(
          {w.rank, s.piece, w.data});
    }
  };
  run(programs, inputs);
  return forms;
}

// Cuts beside each other, addends on each other, what several ranks hold once; of gradients all
// that a rank gives. An empty array where parts are missing.
Array join(const std::vector<Part>& parts, const Shape& shape, bool gradient) {
  Array whole = Array::filled(shape);
  std::map<std::string, Array> pieces;
  std::map<std::string, int> owner;
  double elements = 0;
  for (const Part& part : parts) {
    std::string key = std::to_string(part.piece.addend);
    for (const lower::Range& range : part.piece.box)
      key += fmt::format(" {}:{}", range.start, range.stop);
    const auto [holder, fresh] = owner.try_emplace(key, part.rank);
    if (!fresh && (!gradient || holder->second != part.rank)) continue;
    if (fresh) elements += static_cast<double>(part.data.count()) / part.piece.addends;
    add_into(part.piece.box.empty() ? whole : view_of(whole, part.piece.box), part.data);
  }
  return std::abs(elements - static_cast<double>(whole.count())) < 0.5 ? whole : Array();
}

struct Count {
  int forward = 0, backward = 0, missing = 0;
};

Count check_sights(const GraphPtr& graph, const Builder& b) {
  const auto plan = std::make_shared<const plan::Plan>(Builder(b).finish("hand"));
  const size_t micros = static_cast<size_t>(plan->units() * plan->micro_batches);
  const Inputs inputs = random_inputs(*graph, micros, 5);
  const Forms want = forms_of(lower_all(graph), inputs),
              got = forms_of(lower_all(graph, plan), inputs);
  Count count;
  for (const auto& [key, layouts] : got) {
    const auto [value, gradient, reader, micro] = key;
    const Shape& shape = graph->value({value}).type.shape;
    const auto known = want.find({value, gradient, gradient ? reader : -1, micro});
    if (known == want.end()) continue;  // of what one device does not make
    const Array whole = join(known->second.begin()->second, shape, gradient);
    REQUIRE(whole.memory);
    Array sum = Array::filled(shape);
    bool complete = true;
    for (const auto& [layout, parts] : layouts) {
      const Array one = join(parts, shape, gradient);
      complete = complete && one.memory;
      if (!one.memory) continue;
      if (!gradient) {
        INFO(graph->value({value}).name << " read by " << reader << " as " << layout);
        CHECK(largest_difference(whole, one) <= 1e-10 * std::max(1.0, largest(whole)));
      }
      add_into(sum, one);
    }
    if (!complete) {
      ++count.missing;
      continue;
    }
    if (gradient) {
      INFO("gradient of " << graph->value({value}).name << " by " << reader);
      CHECK(largest_difference(whole, sum) <= 1e-10 * std::max(1.0, largest(whole)));
    }
    ++(gradient ? count.backward : count.forward);
  }
  return count;
}

void replicate_rest(Builder& b, int parts) {
  for (const graph::Node& node : b.graph().nodes)
    if (!b.planned(node.id)) b.replicate(node.id, parts);
}

void cut_blocks(Builder& b, int parts) {
  for (const graph::Node& node : b.graph().nodes) {
    if (node.op == "aten::gelu") b.partition(node.id, 0, 2, parts);
    if (node.op != "aten::linear") continue;
    if (node.module.ends_with(".fc")) b.partition(node.id, 1, 0, parts);
    if (node.module.ends_with(".proj")) b.partition(node.id, 1, 1, parts);
  }
}

}  // namespace

TEST_CASE("sights of scale units and shards are the values of one device") {
  for (const GraphPtr& graph : {perceptrons(2), transformer(2), oddities()})
    for (int level : {0, 2, 3}) {
      Builder b(graph, 1, 2);
      replicate_rest(b, 1);
      b.zero(level);
      const Count count = check_sights(graph, b);
      CHECK(count.forward >= static_cast<int>(graph->nodes.size()));
      CHECK(count.backward > 0);
      CHECK(count.missing == 0);
    }
}

TEST_CASE("sights of cut operators join to the values of one device") {
  for (const GraphPtr& graph : {perceptrons(2), transformer(2)})
    for (int parts : {2, 3}) {
      Builder b(graph, parts, 2 * parts);
      cut_blocks(b, parts);
      replicate_rest(b, parts);
      const Count count = check_sights(graph, b);
      CHECK(count.forward >= static_cast<int>(2 * graph->nodes.size()));
      CHECK(count.backward > 0);
      CHECK(count.missing == 0);
    }
}

TEST_CASE("sights of a pipeline are the values of one device") {
  for (const GraphPtr& graph : {perceptrons(2), transformer(2)}) {
    Builder b(graph, 2, 2);
    int second = 0;
    for (const graph::Node& node : graph->nodes)
      if (node.module.starts_with("h.1.") && second == 0) second = node.id;
    b.stage({second}, {{0}, {1}});
    replicate_rest(b, 1);
    b.schedule("1f1b", 2, 2);
    const Count count = check_sights(graph, b);
    CHECK(count.forward >= static_cast<int>(2 * graph->nodes.size()));
    CHECK(count.backward > 0);
    CHECK(count.missing == 0);
  }
}
