// A call while a plan cuts it: where each part has one of what a dimension names first, a further
// cut of that dimension is one of the call of a part. So a head of keys that several queries share
// goes to several devices, which then share out its queries.
#pragma once

#include "operators/split.h"

namespace nns::operators {

class Rest {
 public:
  Rest(const graph::Graph& graph, const graph::Node& node);

  // What the annotation says of the next cut; nothing where there is no annotation.
  const Binding* at(int input, int dim);
  // Parts of an identifier of `at` so far.
  int64_t parts(const std::string& identifier) const;
  // Cuts, as `at` lets it be cut. Nothing is left of a cut into uneven parts.
  void cut(const Split& split, int64_t parts, bool even);

  // The call of a part, with arguments of its own, and how often a call of a part has been begun.
  CallView view(const std::vector<NamedArg>& args) const;
  int turns() const { return turns_; }

 private:
  const TensorType& type(int id) const;

  const graph::Graph& graph_;
  const graph::Node& node_;
  std::optional<Binding> binding_;
  std::map<std::string, int64_t> parts_;  // by identifier of binding_
  std::vector<NamedArg> args_;            // of the first part
  std::map<int, TensorType> local_;       // operands of a part, by value
  std::map<int, TensorType> bound_;       // those that binding_ is of
  bool even_ = true;
  int turns_ = 0;
};

}  // namespace nns::operators
