// The record of an operator: all that the system knows of it. Whoever traces, cuts, differentiates,
// prices or prints a call asks its record and knows no operator by name. Records stand in one file
// per family; a script adds its own by `register_op`.
//
// A record is named by the operator without its overload ("aten::add") or with it ("aten::max.dim")
// where overloads differ; `find` tries the full name, then the base name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "annotate/grammar.h"
#include "operators/call_view.h"
#include "operators/part.h"
#include "operators/schema.h"

namespace nns::operators {

// How the result of a call shares memory with its first tensor, and how a write through it goes
// back (trace/places.h).
enum class View {
  none,
  slice,
  narrow,
  select,
  diagonal,
  swap,       // transpose and its other names
  transpose,  // t
  permute,
  move,     // movedim
  strided,  // view: other sizes of the same elements, where the strides allow it
  shape,    // squeeze, unsqueeze
  reshape,  // a view of contiguous memory, else perhaps a copy; its sizes are spelled in full
  flatten,  // the same, its sizes told by others
  same,     // alias
  dense,    // contiguous: same if contiguous, else perhaps a copy
  complex,  // view_as_complex
  real,     // view_as_real
  split,    // several outputs along a dimension
  unbind,
  spread,   // expand: elements share memory
  opaque,   // a view without an inverse
  perhaps,  // a copy, but where nothing changes (to)
  copy,     // the operand unchanged in memory of its own (clone)
};

// Whether the result may share storage with the first tensor.
inline bool is_view(View view) {
  return view != View::none && view != View::copy;
}

// Whether results are dense in row-major order.
enum class Dense {
  unknown,
  always,
  kept,     // where all operands are
  leading,  // where all operands are and the first rows are taken
};

// What an operator is to who looks for a kind of work.
enum class Kind { other, sum, linear, embedding, class_loss, experts, attention };

// What a call gives back beside tensors.
enum class Answer {
  tensors,
  data,   // elements of a tensor, which a model under trace does not have
  shape,  // what is known without data (Record::ask)
};

// The result of a call of whose first tensor only this argument's elements are left, or zeros where
// there is none of that name: what writing into it in place makes.
struct Overwrite {
  std::string content;
  bool casts = false;  // to the dtype of the first tensor, whatever the content's
};

// What autocast does with the floating operands of a call, float64 ones left out.
enum class Cast {
  none,
  lower,   // to the dtype of the region
  full,    // to float32
  widest,  // to that of the operand that has the most bits
};
struct Autocast {
  Cast cpu = Cast::none, cuda = Cast::none;
};

// How much of something the operands hold, by name: 0 for numbers, nothing where it is no number.
using HeldBy = std::function<std::optional<double>(std::string_view operand)>;

using Rules = std::vector<annotate::TransformRule>;

// What a call of a communicating operator does with its group, or as a message.
enum class Communication {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  scatter_gradient,
  all_to_all,
  exchange,  // rows; how many go to whom is data
  rotate,    // each to the next of a ring
  zigzag,
  value_chunk,  // names a group, but sends nothing
  move,
  send,
  receive,
  adapter,  // becomes another call, or none, before the program is done
};

// Copies of activations in memory of the host: there, and back to a device.
inline constexpr const char* kToHost = "comm::to_host";
inline constexpr const char* kFromHost = "comm::from_host";

struct Record {
  std::string name = {};
  // Of operators that LibTorch does not have; the others' stand in schemas.inc.
  std::optional<Schema> schema = {};
  // Types of the outputs in order.
  std::function<Types(const CallView&)> infer = {};
  // Alternatives, tried in order; empty: never split (replicated). Input shapes are those of
  // CallView::operands(), output shapes those of infer.
  std::variant<std::monostate, Texts, std::function<Texts(const CallView&)>> annotations = {};
  std::function<double(const CallView&)> flops = {};  // empty: one per output element
  // Share of them that its kernels execute; empty: all.
  std::function<double(const CallView&)> executed = {};
  // Argument of integers that spells the shape of output 0: rewritten when that output is split.
  std::string size_arg = {};
  // Arguments whose tensors the call writes, also where the schema does not say so (batch_norm).
  std::vector<std::string> mutates = {};
  bool random = false;   // draws random numbers
  bool counted = false;  // … by counters of the step, not from hidden state
  bool sliced = false;  // takes `offset` and `full`: where its first tensor lies in the unsplit one
  View view = View::none;
  Dense dense = Dense::unknown;
  bool constant = false;  // outputs never require gradients (detach, zeros_like, argmax)
  bool identity = false;  // returns its first tensor unchanged whenever the type is unchanged
  Communication communication = Communication::none;
  bool hook = false;     // a user's function runs
  bool on_host = false;  // the result is a copy in memory of the host
  Kind kind = Kind::other;
  Answer answer = Answer::tensors;
  std::function<Arg(const CallView&)> ask = {};  // of Answer::shape
  // Why the shapes of this call's results depend on data, as "with a boolean mask"; nothing: they
  // do not.
  std::function<std::optional<std::string>(const CallView&)> depends_on_data = {};
  std::optional<Overwrite> overwrite = {};
  // How much output `i` holds of what its operands hold, where it is a sum of them times numbers,
  // element by element; nothing where it is no such form.
  std::function<std::optional<double>(const CallView&, size_t i, const HeldBy& held)> keeps = {};
  // The operator that does this one's work where its first operand is a sum, whose addend stands
  // second and which it gives first.
  std::string of_sum = {};
  std::string addend = {};  // argument that is added to output 0
  // The operator that makes the same product in tiles of ours (ops/products.cpp), of float32 on a
  // CPU; and of that one the other.
  std::string tiled = {}, untiled = {};
  bool shape_only = false;  // reads of its tensors nothing but shapes and dtypes
  Autocast autocast = {};
  Derivative derivative = {};
  // In order of preference; where none serves, the call itself stands, or what its derivative makes
  // of it.
  std::vector<Kernel> kernels = {};
  // Whether parts of a split are more than the call on local tensors, and what they are then.
  std::function<bool(const CallView&, const annotate::Split&)> assisted = {};
  PartRule part = {};
  // Splits that the operator declares itself, beside those of its annotation.
  std::variant<Rules, std::function<Rules(const CallView&)>> rules = {};
  // Calls to try it with: lists of arguments, written in Lua in the words of
  // lua/nnscaler/verify/examples.lua.
  std::vector<std::string> examples = {};
  // A composite: its calls for operands of these types, inputs in the order of CallView::operands.
  std::function<std::shared_ptr<const graph::Graph>(const CallView&)> body = {};
  // The calls of a composite's derivative, where its script writes them instead of leaving them to
  // follow from the body. Inputs: gradients of the results, the operands, the results. Results: one
  // gradient per operand, in order, empty where there is none.
  std::function<std::shared_ptr<const graph::Graph>(const CallView&, const Types& results)>
      backward = {};
  bool registered = false;  // by a script, in this thread
};

// Record of an operator ("aten::add.Tensor"), or nullptr.
const Record* find(std::string_view op);
// All records of the system's own, sorted by name.
std::vector<const Record*> all_records();

// Adds the record of a script, in place of one of the same name: composites, and operators of a
// user's library. One registry a thread, since each rank thread has a script of its own. Without
// `infer`, shapes come from the annotation and the dtype from the first tensor. Throws a usage
// Error for a name that is no "library::operator" or that the system has itself.
void register_record(Record record);
std::vector<std::string> registered_names();  // sorted
// Forgets all of the calling thread: their functions belong to a script that ends.
void clear_registered();

// Types of the outputs in order (a list result is flattened; an output that ATen leaves undefined,
// such as one masked off by `output_mask`, has shape [0]). Throws a model Error that names the
// operator and the shapes when they do not fit, or when the operator has no record.
Types infer(const CallView& call);
// Annotation alternatives of this call; empty when it cannot be split.
Texts annotations(const CallView& call);
double flops(const CallView& call);
// Those that kernels execute: of causal attention without what lies above the diagonal.
double executed_flops(const CallView& call);
// Bytes read and written: operands and outputs once each.
int64_t bytes(const CallView& call);
// A number among the arguments; nothing where it is a tensor, absent or something else.
std::optional<double> number_of(const CallView& call, std::string_view name);
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

}  // namespace nns::operators
