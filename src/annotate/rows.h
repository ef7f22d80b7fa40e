// What the rows of the operator table are made of: shape arithmetic, common `infer` functions and
// annotation builders. Internal to src/annotate.
#pragma once

#include <initializer_list>
#include <vector>

#include "annotate/op_table.h"
#include "base/error.h"

namespace nns::annotate {

// Rows under construction: one entry for several operators that behave alike.
class Rows {
 public:
  void add(std::initializer_list<std::string_view> names, OpInfo row) {
    for (const auto name : names) {
      row.name = name;
      rows_.push_back(row);
    }
  }
  std::vector<OpInfo> take() { return std::move(rows_); }

 private:
  std::vector<OpInfo> rows_;
};

std::vector<OpInfo> elementwise_rows();
std::vector<OpInfo> reduction_rows();
std::vector<OpInfo> shape_rows();
std::vector<OpInfo> cut_rows();  // cat, split, slice, …
std::vector<OpInfo> index_rows();
std::vector<OpInfo> creation_rows();
std::vector<OpInfo> product_rows();  // linear, matmul, attention
std::vector<OpInfo> norm_rows();     // layer, batch, group norm
std::vector<OpInfo> spatial_rows();  // convolutions, pooling, resampling
std::vector<OpInfo> loss_rows();

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
// One input, one output: axes that keep their size are spatial, all others numbers. Aligned from
// the last.
Texts kept_axes(const CallView& call);
// All operands and outputs of one shape, which has `frozen` axes.
Texts aligned(const CallView& call, const std::vector<bool>& frozen);

// One input reshaped to one output: common factors of the axes.
Texts reshape_text(const Shape& from, const Shape& to);
// How many elements start, end and step of a slice leave of an axis.
int64_t slice_length(const CallView& call, int64_t size);

}  // namespace nns::annotate
