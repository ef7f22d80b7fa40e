// The operators of the tests' interpreter: those that the tests' graphs call and those that the
// lowering writes, each as its definition on plain arrays.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "support/array.h"

namespace nns::test {

// Counters of random draws.
struct Counters {
  int64_t seed = 0, step = 0, micro = 0;
};

// A call with its tensors.
class Call {
 public:
  Call(std::string_view op, const std::vector<graph::NamedArg>& args,
       std::function<Array(int)> tensor, Counters counters)
      : op_(op), args_(args), tensor_(std::move(tensor)), counters_(counters) {}

  std::string_view op() const { return op_; }
  const Counters& counters() const { return counters_; }
  const graph::Arg* find(std::string_view name) const;
  bool has(std::string_view name) const;  // present and not nil
  Array in(std::string_view name) const;  // a number: an array without dimensions
  std::vector<Array> list(std::string_view name) const;
  // Entries that are nil have no memory.
  std::vector<Array> holes(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise = 0) const;
  double real(std::string_view name, double otherwise = 0) const;
  bool boolean(std::string_view name, bool otherwise = false) const;
  std::string text(std::string_view name, std::string_view otherwise = {}) const;
  Shape ints(std::string_view name) const;  // nil: empty; a number: a list of it
  std::vector<bool> flags(std::string_view name) const;
  // A dimension of a tensor of this rank, counted from 0.
  size_t dim(std::string_view name, size_t rank, int64_t otherwise = 0) const;
  // The same of a list; nil or empty: all.
  Shape dims(std::string_view name, size_t rank) const;

 private:
  std::string_view op_;
  const std::vector<graph::NamedArg>& args_;
  std::function<Array(int)> tensor_;
  Counters counters_;
};

using Operator = std::function<std::vector<Array>(const Call&)>;
using Operators = std::map<std::string, Operator, std::less<>>;

// Results of an operator, found by full name, then without its overload; throws for others.
std::vector<Array> evaluate(const Call& call);

// The families add their own.
void add_elementwise(Operators& all);
void add_activations(Operators& all);
void add_reductions(Operators& all);
void add_shapes(Operators& all);
void add_products(Operators& all);
void add_layers(Operators& all);
void add_losses(Operators& all);
void add_indexing(Operators& all);
void add_spatial(Operators& all);

}  // namespace nns::test
