// How ranks share weights, over plans of all kinds: gradients of which ranks are added, who holds
// the same sum, and which part of a weight's states is whose; seen from all ranks at once.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "lower/distribution.h"
#include "plan/builder.h"
#include "support/models.h"

using namespace nns;
using namespace nns::test;
using lower::Program;
using lower::Range;
using lower::Share;

namespace {

// What a rank has of a parameter.
struct Held {
  int rank = 0;
  const Share* share = nullptr;
  std::vector<Range> box;  // of what is used; of weights that rest in shards of the shard
  Range part;              // of its gradient, once it is summed, along the share's dimension
  bool scattered = false;
};
using AllHeld = std::map<std::string, std::vector<Held>>;

AllHeld held_of(const Programs& programs) {
  AllHeld out;
  for (const auto& lowered : programs.ranks) {
    const Program& p = lowered.program;
    for (size_t i = 0; i < p.parameters.size(); ++i) {
      const lower::Slot& slot = p.slot(p.parameters[i]);
      const Share& share = p.shares.at(i);
      Held held{p.rank, &share, slot.box, {0, share.length}, share.scatter || share.scattered()};
      if (held.scattered) {
        const auto at = std::find(share.over.begin(), share.over.end(), p.rank);
        REQUIRE(at != share.over.end());
        held.part = share.part(static_cast<int>(at - share.over.begin()));
      }
      out[slot.name].push_back(std::move(held));
    }
  }
  return out;
}

void shared_rightly(const std::vector<Held>& all, size_t units) {
  const auto of = [&](int rank) -> const Held& {
    return *std::find_if(all.begin(), all.end(), [&](const Held& h) { return h.rank == rank; });
  };
  for (const Held& mine : all) {
    const Share& share = *mine.share;
    INFO("rank " << mine.rank);
    // Whoever is added says so too.
    for (int other : share.reduce) {
      CHECK(of(other).share->reduce == share.reduce);
      CHECK(of(other).part.start == mine.part.start);
    }
    CHECK((share.reduce.empty() ||
           std::count(share.reduce.begin(), share.reduce.end(), mine.rank) == 1));
    CHECK(share.reduce.size() != 1);
    // Parts lie side by side from the first rank to the last, or all is with one.
    int64_t length = 0;
    for (size_t i = 0; i < share.over.size(); ++i) {
      const Range part = share.part(static_cast<int>(i));
      if (share.owner < 0) CHECK(part.start == length);
      length += part.length();
      CHECK(of(share.over[i]).share->over == share.over);
    }
    CHECK((share.over.empty() || length == share.length));
    // Every rank that has an addend of my part is added once: here, or on the way to the shard.
    std::set<int> added;
    const std::vector<int> way = mine.scattered ? share.over : std::vector<int>{mine.rank};
    for (int peer : way) {
      const auto& theirs = of(peer).share->reduce;
      for (int rank : theirs.empty() ? std::vector<int>{peer} : theirs)
        CHECK(added.insert(rank).second);
    }
    CHECK(added.size() % units == 0);
    // As many hold what I hold.
    if (mine.part.length() == 0 && mine.scattered) continue;
    const auto same = std::count_if(all.begin(), all.end(), [&](const Held& h) {
      return h.box == mine.box && h.part.start == mine.part.start && h.part.stop == mine.part.stop;
    });
    CHECK(share.holders == same);
  }
}

}  // namespace

TEST_CASE("all ranks agree how they share a weight", "[shares]") {
  for (const GraphPtr& graph : {linears({7, 6, 10, 4, 8}), perceptrons(2)})
    for (const int devices : {1, 2})
      for (const int units : {1, 2, 4, 6})
        for (const int groups : {1, 2, 3})
          for (const int zero : {0, 1, 2})
            for (const bool scatter : {false, true}) {
              if (units % groups != 0 || (zero == 0 && (scatter || groups > 1))) continue;
              plan::Builder b(graph, devices, devices * units);
              for (const graph::Node& node : graph->nodes)
                if (node.module.ends_with("fc") || node.module == "fc1")
                  b.partition(node.id, 1, 0, devices);
              for (const graph::Node& node : graph->nodes)
                if (!b.planned(node.id)) b.replicate(node.id, devices);
              b.zero(zero);
              b.zero_groups(groups);
              if (scatter) b.zero_scatter();
              b.undivided("fc2.weight");
              b.undivided("fc3.weight");
              b.undivided("h.1.fc.bias");
              const auto plan = std::make_shared<const plan::Plan>(b.finish("hand"));
              INFO(graph->name << " on " << devices << " x " << units << ", ZeRO " << zero
                               << (scatter ? " scattered" : "") << " in " << groups << " groups");
              const Programs programs = lower_all(graph, plan);
              for (const auto& [name, all] : held_of(programs)) {
                INFO(name);
                CHECK(all.size() == static_cast<size_t>(devices * units));
                shared_rightly(all, static_cast<size_t>(units));
                for (const Held& held : all) {
                  const int over = static_cast<int>(held.share->over.size());
                  CHECK(over == (zero == 0 || units == groups ? 0 : units / groups));
                }
              }
            }
}

TEST_CASE("stages that hold one weight share it", "[shares]") {
  const GraphPtr graph = perceptrons(4);
  int second = 0;
  while (!graph->nodes[static_cast<size_t>(second)].module.starts_with("h.2")) ++second;
  for (const int units : {1, 2, 4})
    for (const int zero : {0, 1, 2}) {
      plan::Builder b(graph, 2, 2 * units);
      b.stage({second}, {{0}, {1}});
      for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
      b.schedule("1f1b", 2, 1);
      b.zero(zero);
      const auto plan = std::make_shared<const plan::Plan>(b.finish("hand"));
      const Programs programs = lower_all(graph, plan);
      INFO(units << " units, ZeRO " << zero);
      for (const auto& [name, all] : held_of(programs)) {
        INFO(name);
        CHECK(all.size() == static_cast<size_t>(name == "wte" ? 2 * units : units));
        shared_rightly(all, static_cast<size_t>(units));
      }
    }
}

TEST_CASE("weights are cut where least is padded", "[shares]") {
  // Against trying all dimensions.
  for (const Shape& piece : {Shape{4}, Shape{3, 4}, Shape{4, 3}, Shape{5, 7}, Shape{7, 5},
                             Shape{6, 6, 6}, Shape{1, 9, 2}, Shape{10, 9, 8}})
    for (const int ranks : {2, 3, 4, 5, 7}) {
      const auto padded = [&](size_t d) {
        Shape shape = piece;
        while (shape[d] % ranks != 0) ++shape[d];
        return static_cast<double>(numel(shape)) / static_cast<double>(numel(piece));
      };
      const size_t chosen = lower::shard_dim(piece, ranks);
      for (size_t d = 0; d < piece.size(); ++d) {
        INFO(to_string(piece) << " over " << ranks << " along " << d);
        if (d < chosen) CHECK(padded(d) > padded(chosen));
        if (d > chosen) CHECK(padded(d) >= padded(chosen));
      }
    }
}

TEST_CASE("undivided weights go to the rank that has least of them", "[shares]") {
  const GraphPtr graph = linears({8, 6, 10, 4, 8, 3});
  for (const int units : {2, 3, 4}) {
    plan::Builder b(graph, 1, units);
    for (const graph::Node& node : graph->nodes) b.replicate(node.id, 1);
    b.zero(plan::Zero::slots);
    for (const int i : {0, 1, 3, 4}) b.undivided("fc" + std::to_string(i) + ".weight");
    const auto plan = std::make_shared<const plan::Plan>(b.finish("hand"));
    const Programs programs = lower_all(graph, plan);
    std::vector<int64_t> load(static_cast<size_t>(units), 0);
    for (const auto& lowered : programs.ranks)
      CHECK(lowered.program.shares.size() == programs.ranks[0].program.shares.size());
    const Program& p = programs.ranks[0].program;
    for (size_t i = 0; i < p.parameters.size(); ++i) {
      const lower::Slot& slot = p.slot(p.parameters[i]);
      INFO(slot.name << " of " << units);
      if (slot.name == "fc2.weight") {
        CHECK(p.shares[i].owner == -1);
        continue;
      }
      size_t least = 0;
      for (size_t r = 1; r < load.size(); ++r)
        if (load[r] < load[least]) least = r;
      for (const auto& lowered : programs.ranks)
        CHECK(lowered.program.shares[i].owner == static_cast<int>(least));
      load[least] += numel(slot.type.shape);
    }
  }
}
