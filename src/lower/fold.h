// Fold: what a plan of many equal layers costs, from programs of few of them. Each layer more of a
// row of equal ones, cut alike, adds the same to every part of a step and to every kind of memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lower/duration.h"

namespace nns::lower {

class Fold {
 public:
  explicit Fold(std::shared_ptr<const graph::Graph> graph);

  // What `simulate` says of a Skeleton of the whole graph, without what each call takes
  // (RankAccount::spent): seconds to rounding, bytes to the integer. Where gradients form sets over
  // scale units (ZeRO), whose sizes are no multiple of a layer's, their sums are near. `options`:
  // those of the Skeleton; its plan is left out of account.
  StepCost simulate(const plan::Plan& plan, Options options, const cost::Hardware& on,
                    const StepSettings& settings) const;

 private:
  // An entry of a list of modules as a range of nodes.
  struct Block {
    size_t first = 0, last = 0;
    std::string path = {};
    int form = 0;                  // equal for equal blocks
    bool closed = false;           // what it makes is read in it and the next block alone
    std::vector<int> leaves = {};  // weights, buffers and constants that nothing else reads
  };
  // Blocks that follow one another and are equal, in graph and plan.
  struct Row {
    size_t first = 0, count = 0;
  };
  struct Folded {
    std::shared_ptr<const graph::Graph> graph;
    std::shared_ptr<const plan::Plan> plan;
    std::vector<int> nodes;  // of the whole graph, by node
  };

  void find_blocks();
  void find_forms();
  std::string form_of(const Block& block, const Block* before) const;
  bool is_closed(const Block& block, const Block* next) const;
  bool equal(const plan::Plan& plan, const Block& a, const Block& b) const;
  std::vector<Row> rows(const plan::Plan& plan) const;
  Folded fold(const plan::Plan& plan, const plan::Plan& bare, const std::vector<Row>& rows,
              const std::vector<size_t>& keep) const;

  std::shared_ptr<const graph::Graph> graph_;
  std::vector<Block> blocks_;
  // By value: its number among those of its block; first and last node that reads it (-1: none;
  // the number of nodes: it is a result).
  std::vector<int> number_, first_reader_, last_reader_;
};

}  // namespace nns::lower
