// The operator table: what the planner knows of each operator. One row an operator: shapes and
// dtypes of its outputs, how it may be split (dimension annotations), what it mutates, whether it
// draws random numbers, its floating point operations.
//
// A row is named by the operator without its overload ("aten::add") or with it ("aten::max.dim")
// where overloads differ; `find` tries the full name, then the base name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/types.h"
#include "graph/graph.h"

namespace nns::annotate {

using graph::Arg;
using graph::NamedArg;

// A call with typed operands, as `infer` sees it. `args` are those of a graph::Node: all arguments
// of the schema by name, defaults filled in (an absent one reads as nil). Borrows op and args.
// Getters throw a model Error `[annotate.linear] …` when an argument is missing or of another kind.
class CallView {
 public:
  using TypeOf = std::function<const TensorType&(int id)>;
  CallView(std::string_view op, const std::vector<NamedArg>& args, TypeOf type_of);
  CallView(const graph::Graph& graph, const graph::Node& node);

  std::string_view op() const { return op_; }  // "aten::add.Tensor"
  std::string_view base() const;               // "aten::add"
  const std::vector<NamedArg>& args() const { return *args_; }
  const Arg* find(std::string_view name) const;  // nullptr: absent
  bool has(std::string_view name) const;         // present and not nil

  const TensorType& tensor(std::string_view name) const;
  const TensorType* maybe_tensor(std::string_view name) const;  // nullptr: nil or not a tensor
  std::vector<const TensorType*> tensors(std::string_view name) const;  // nil entries: nullptr
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t if_nil) const;
  std::optional<int64_t> maybe_integer(std::string_view name) const;
  double real(std::string_view name) const;  // an integer is taken too
  double real(std::string_view name, double if_nil) const;
  bool boolean(std::string_view name, bool if_nil = false) const;
  std::vector<int64_t> ints(std::string_view name) const;  // nil: empty; one integer: a list of it
  std::vector<double> reals(std::string_view name) const;
  std::vector<bool> bools(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name) const;
  std::string text(std::string_view name, std::string_view if_nil = {}) const;

  // The tensors of the call in argument order, lists expanded, nil left out (as graph::inputs_of):
  // the inputs that an annotation of this call speaks of, one shape each.
  std::vector<const TensorType*> operands() const;

  // Throws a model Error "[annotate.<name>] <text>".
  [[noreturn]] void fail(const std::string& text) const;

 private:
  std::string_view op_;
  const std::vector<NamedArg>* args_;
  TypeOf type_of_;
};

using Types = std::vector<TensorType>;
using Texts = std::vector<std::string>;

struct OpInfo {
  std::string_view name = {};
  Types (*infer)(const CallView&) = nullptr;
  // Alternatives, tried in order; empty: never split (replicated). Input shapes are those of
  // CallView::operands(), output shapes those of infer.
  std::variant<std::monostate, Texts, Texts (*)(const CallView&)> annotations = {};
  double (*flops)(const CallView&) = nullptr;  // nullptr: one per output element
  // Argument of integers that spells the shape of output 0: rewritten when that output is split.
  std::string_view size_arg = {};
  // Arguments whose tensors the call writes, also where the schema does not say so (batch_norm).
  std::vector<std::string_view> mutates = {};
  bool random = false;  // draws random numbers
  bool sliced = false;  // takes `offset` and `full`: where its first tensor lies in the unsplit one
  bool view = false;    // ATen's result may share storage with its first tensor
  bool constant = false;  // outputs never require gradients (detach, zeros_like, argmax)
  bool identity = false;  // returns its first tensor unchanged whenever the type is unchanged
};

// Row of an operator ("aten::add.Tensor"), or nullptr.
const OpInfo* find(std::string_view op);
// All rows, sorted by name.
std::vector<const OpInfo*> all_ops();

// Types of the outputs in order (a list result is flattened; an output that ATen leaves undefined,
// such as one masked off by `output_mask`, has shape [0]). Throws a model Error that names the
// operator and the shapes when they do not fit, or when the operator has no row.
Types infer(const CallView& call);
// Annotation alternatives of this call; empty when it cannot be split.
Texts annotations(const CallView& call);
double flops(const CallView& call);
// Bytes read and written: operands and outputs once each.
int64_t bytes(const CallView& call);
// Whether the call returns its first tensor as it is.
bool is_identity(const CallView& call);
// Whether the call draws random numbers as it stands (dropout in training with p > 0).
bool is_random(const CallView& call);

// The out-of-place operator of an in-place one ("aten::add_.Tensor" → "aten::add.Tensor"), or
// nothing when `op` is not in place. The written argument is always the first ("self"); it keeps
// its shape and dtype, so a result of another dtype is to be cast back.
std::optional<std::string> functional_form(std::string_view op);

// dtype of an arithmetic result by PyTorch's promotion: tensors with dimensions before 0-dim
// tensors before numbers. Each argument is a tensor or a number; others are ignored.
struct Operand {
  const TensorType* tensor = nullptr;
  std::optional<DType> number;  // i64, f64 or boolean
};
DType result_type(const std::vector<Operand>& operands);
// Shape of broadcasting; nothing if they do not fit.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);

}  // namespace nns::annotate
