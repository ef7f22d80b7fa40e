// The one reader of a call's arguments: by name, typed, with the types of its tensors. What infers,
// cuts and derives asks through it, on the nodes of a graph and on the calls of a program alike.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "graph/graph.h"

namespace nns::operators {

using graph::Arg;
using graph::NamedArg;
using Ref = graph::ValueRef;  // a value of a graph or a slot of a program; id -1: no tensor
using Types = std::vector<TensorType>;
using Texts = std::vector<std::string>;

// The operator without its overload: "aten::add.Tensor" → "aten::add".
std::string_view base_of(std::string_view op);

// A call with typed operands. `args` are named as in the schema; an absent one reads as nil, and
// `if_nil` is what the caller takes for it. A number that must be there is the schema's default
// where the call leaves it out. Borrows op and args. Getters throw a model Error
// `[annotate.linear] …` when an argument is missing or of another kind.
class CallView {
 public:
  using TypeOf = std::function<const TensorType&(int id)>;
  CallView(std::string_view op, const std::vector<NamedArg>& args, TypeOf type_of);
  CallView(const graph::Graph& graph, const graph::Node& node);

  std::string_view op() const { return op_; }  // "aten::add.Tensor"
  std::string_view base() const { return base_of(op_); }
  const std::vector<NamedArg>& args() const { return *args_; }
  const Arg* find(std::string_view name) const;  // nullptr: absent
  const Arg& arg(std::string_view name) const;   // absent reads as nil
  bool has(std::string_view name) const;         // present and not nil
  bool is_tensor(std::string_view name) const;   // a tensor, not a number or nil

  const TensorType& tensor(std::string_view name) const;
  const TensorType* maybe_tensor(std::string_view name) const;  // nullptr: nil or not a tensor
  std::vector<const TensorType*> tensors(std::string_view name) const;  // nil entries: nullptr
  // Of a tensor, by value: emitting a call moves what `tensor` refers to.
  TensorType type(std::string_view name) const { return tensor(name); }
  Shape shape(std::string_view name) const { return tensor(name).shape; }
  int64_t rank(std::string_view name) const;
  Ref in(std::string_view name) const;                 // the tensor; -1 when nil
  std::vector<Ref> list(std::string_view name) const;  // tensors; also of a single one

  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t if_nil) const;
  std::optional<int64_t> maybe_integer(std::string_view name) const;
  double real(std::string_view name) const;  // an integer is taken too
  double real(std::string_view name, double if_nil) const;
  bool boolean(std::string_view name, bool if_nil = false) const;
  std::vector<int64_t> ints(std::string_view name) const;  // nil: empty; one integer: a list of it
  std::vector<double> reals(std::string_view name) const;
  std::vector<bool> bools(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name) const;  // of an argument that names one
  std::string text(std::string_view name, std::string_view if_nil = {}) const;
  // Dimension arguments as 0 … rank-1. `dims` of nil or an empty list are all dimensions.
  int64_t dim(std::string_view name, std::string_view tensor = "self") const;
  std::vector<int64_t> dims(std::string_view name, std::string_view tensor = "self") const;

  // The tensors of the call in argument order, lists expanded, nil left out (as graph::inputs_of):
  // the inputs that an annotation of this call speaks of, one shape each.
  std::vector<const TensorType*> operands() const;

  // Throws a model Error "[annotate.<name>] <text>".
  [[noreturn]] void fail(const std::string& text) const;

 private:
  // The argument, or its default by the schema; nullptr where there is neither.
  const Arg* known(std::string_view name) const;

  std::string_view op_;
  const std::vector<NamedArg>* args_;
  TypeOf type_of_;
};

}  // namespace nns::operators
