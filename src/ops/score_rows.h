// Rows of scores of classes on a device that is no CPU: by a kernel for GPUs, else by ATen's
// operators, which take no 16-bit scores here. Labels are classes. (Rows of CPUs: class_rows.h.)
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace nns::ops {

// What sums of such numbers are made in: float32 of 16-bit ones.
at::ScalarType wide_type(const at::Tensor& x);

// Whether the functions below serve these scores.
bool served_apart(const at::Tensor& scores);

// Throws a data Error, in the name of an operator, where a label that counts is no class.
void check_labels(const char* op, const at::Tensor& labels, int64_t classes,
                  std::optional<int64_t> ignored);

// Per row log Σ exp, the score of its label and, if asked for, Σ of its scores, in the wide type.
struct RowSums {
  at::Tensor sums, own, plain;
};
RowSums row_sums(const at::Tensor& scores, const at::Tensor& labels, bool plain);

// out = by · softmax - less, plus `own` at the label: numbers of a row in the wide type; zeros, but
// for `own`, where `by` is 0. `less` may be undefined, `out` be the scores.
void softmax_gradient(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& sums,
                      const at::Tensor& by, const at::Tensor& less, const at::Tensor& own,
                      at::Tensor& out);

}  // namespace nns::ops
