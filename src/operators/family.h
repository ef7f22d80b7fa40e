// What the records of a family are made of: shape arithmetic, common `infer` functions and
// annotation builders. Internal to src/operators.
#pragma once

#include <initializer_list>
#include <map>
#include <vector>

#include "base/error.h"
#include "operators/record.h"

namespace nns::operators {

// Records under construction.
class Records {
 public:
  // One record for each of several operators that behave alike.
  void add(std::initializer_list<std::string_view> names, const Record& record);
  // Tells what several operators of different records have in common.
  void set(std::initializer_list<std::string_view> names, void (*change)(Record& record));
  // Gives the record of this very name its derivative.
  void derive(std::string_view name, Derivative derivative);
  // Adds example calls to each of the named operators, "aten::" left out: "add sub nnscaler::gelu".
  void examples(std::string_view names, std::string_view calls);
  std::map<std::string, Record, std::less<>> take() { return std::move(records_); }

 private:
  std::map<std::string, Record, std::less<>> records_;
};

// The families, one file each, and the derivatives of the larger ones in a file beside it.
void add_elementwise(Records& records);
void add_elementwise_derivatives(Records& records);
void add_reductions(Records& records);
void add_reduction_derivatives(Records& records);
void add_shapes(Records& records);
void add_cuts(Records& records);  // cat, split, slice, …
void add_shape_derivatives(Records& records);
void add_indexing(Records& records);
void add_index_derivatives(Records& records);
void add_creation(Records& records);
void add_products(Records& records);  // linear, matmul
void add_product_derivatives(Records& records);
void add_attention(Records& records);
void add_ring_attention(Records& records);
void add_norms(Records& records);
void add_norm_derivatives(Records& records);
void add_spatial(Records& records);  // convolutions
void add_spatial_derivatives(Records& records);
void add_pooling(Records& records);
void add_pooling_derivatives(Records& records);
void add_resampling(Records& records);
void add_recurrent(Records& records);
void add_losses(Records& records);
void add_loss_derivatives(Records& records);
void add_linear_losses(Records& records);
void add_experts(Records& records);
void add_random(Records& records);  // dropout
void add_fused(Records& records);   // calls that do the work of several
void add_communication(Records& records);
void add_queries(Records& records);  // what asks for data or shapes
void add_autocast(Records& records);

// Whether a split of scaled_dot_product_attention cuts its text, keys and values too; and what is
// its part then.
bool cuts_text(const CallView& call, const annotate::Split& split);
std::optional<std::vector<Ref>> ring_part(Part& p);

// --- axes ----------------------------------------------------------------------------------------

// Wraps a possibly negative dimension; fails by name when out of range. Rank 0 counts as rank 1.
size_t axis(const CallView& call, int64_t dim, size_t rank);
// The axes named by an int[] argument (nil or empty: all), as one flag an axis.
std::vector<bool> axes(const CallView& call, std::string_view name, size_t rank);
Shape reduced(const Shape& shape, const std::vector<bool>& gone, bool keepdim);
// The shape asked for, its one -1 filled in; fails when the element counts differ.
Shape resolve_size(const CallView& call, const Shape& size, int64_t count);

// --- types ---------------------------------------------------------------------------------------

inline constexpr DType kDefaultFloat = DType::f32;
inline TensorType undefined_output(DType dtype) {
  return {{0}, dtype};
}
DType to_float(DType dtype);    // integers and booleans become the default float
DType sum_dtype(DType dtype);   // integers and booleans become int64
DType real_part(DType dtype);   // complex64 → float32
DType complex_of(DType dtype);  // float32 → complex64
Operand operand(const CallView& call, std::string_view name);  // tensor or number argument
// Shape over which all operands broadcast; fails with the shapes in the message.
Shape broadcast_all(const CallView& call, const std::vector<const TensorType*>& tensors);
[[noreturn]] void misfit(const CallView& call, const TensorType& a, const TensorType& b,
                         std::string_view expected);

// --- common infer functions ----------------------------------------------------------------------

const TensorType& first(const CallView& call);   // the first operand
Types same(const CallView& call);                // one output like the first operand
Types same_float(const CallView& call);          // … integers become floats
Types broadcast_promoted(const CallView& call);  // arithmetic of all tensor operands
Types broadcast_bool(const CallView& call);

// --- annotations ---------------------------------------------------------------------------------

// Texts of shapes, put together to an annotation.
using DimTexts = std::vector<std::string>;
// "a", "b", … for axis i.
std::string letter(size_t i);
// One letter an axis; `mark` ("+", "^") on the flagged ones.
DimTexts letters(size_t rank, const std::vector<bool>& flagged = {}, std::string_view mark = "");
std::string join_dims(const DimTexts& dims);  // a rank-0 shape is "1"
std::string annotation(const std::vector<DimTexts>& inputs, const std::vector<DimTexts>& outputs);

// All axes of the broadcast shape spatial; axes of size 1 that broadcast are literal.
Texts spatial(const CallView& call);
// How many axes of images an operator's name speaks of (max_pool3d), 2 where of none.
size_t image_axes(const CallView& call);
// Images [batch, channels, …]: batch and channels spatial, the other axes whole.
Texts image_text(const CallView& call);
// One input, one output: axes that keep their size are spatial, all others numbers. Aligned from
// the last.
Texts kept_axes(const CallView& call);
// All operands and outputs of one shape, which has `frozen` axes.
Texts aligned(const CallView& call, const std::vector<bool>& frozen);

// One input reshaped to one output: common factors of the axes.
Texts reshape_text(const Shape& from, const Shape& to);
// How many elements start, end and step of a slice leave of an axis.
int64_t slice_length(const CallView& call, int64_t size);

}  // namespace nns::operators
