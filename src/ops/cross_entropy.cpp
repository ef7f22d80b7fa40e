// nnscaler::cross_entropy and its derivative: log-softmax and loss of classes in one pass that
// keeps one number a row. On a CPU sums over rows run in double and in order, whatever the threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/class_rows.h"
#include "ops/gpu.h"
#include "ops/score_rows.h"

namespace nns::ops {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

struct Options {
  int64_t reduction, ignored;
  double smoothing;
};

void check(const at::Tensor& scores, const at::Tensor& target, const Options& o) {
  const bool fits = scores.dim() == 2 && target.dim() == 1 && target.size(0) == scores.size(0);
  const auto type = wide_type(scores);
  const bool typed = type == at::kFloat || type == at::kDouble;
  if (!fits || !typed || target.scalar_type() != at::kLong)
    fail(
        ErrorKind::model,
        "[ops.cross_entropy] scores {} [{}], target {} [{}]; expected floating [rows, classes] and "
        "Long [rows]",
        c10::toString(scores.scalar_type()), fmt::join(scores.sizes(), ", "),
        c10::toString(target.scalar_type()), fmt::join(target.sizes(), ", "));
  if (o.reduction < kNone || o.reduction > kSum)
    fail(ErrorKind::usage, "[ops.cross_entropy] reduction {}; expected 0, 1 or 2", o.reduction);
  if (!(o.smoothing >= 0 && o.smoothing <= 1))
    fail(ErrorKind::usage, "[ops.cross_entropy] label_smoothing {}; expected 0 to 1", o.smoothing);
}

// --- on a CPU, of float32 and float64 ------------------------------------------------------------

void check_class(int64_t at, int64_t classes, int64_t row) {
  if (at < 0 || at >= classes)
    fail(ErrorKind::data, "[ops.cross_entropy] target {} of row {}; expected 0 to {}", at, row,
         classes - 1);
}

template <class T>
void losses(const at::Tensor& scores, const at::Tensor& target, const Options& o, at::Tensor& sums,
            std::vector<double>& each) {
  const int64_t rows = scores.size(0), classes = scores.size(1);
  const T* x = scores.const_data_ptr<T>();
  const int64_t* at = target.const_data_ptr<int64_t>();
  T* log_sums = sums.mutable_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, classes));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = x + i * classes;
      const double log_sum = log_sum_exp(row, classes);
      log_sums[i] = static_cast<T>(log_sum);
      if (at[i] == o.ignored) continue;
      check_class(at[i], classes, i);
      double loss = (1 - o.smoothing) * (log_sum - row[at[i]]);
      if (o.smoothing > 0) {
        double total = 0;
        for (int64_t c = 0; c < classes; ++c) total += log_sum - row[c];
        loss += o.smoothing / static_cast<double>(classes) * total;
      }
      each[static_cast<size_t>(i)] = loss;
    }
  });
}

using Losses = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Losses cross_entropy_cpu(const at::Tensor& scores, const at::Tensor& target, const Options& o) {
  const int64_t rows = scores.size(0);
  at::Tensor sums = at::empty({rows}, scores.options());
  std::vector<double> each(static_cast<size_t>(rows), 0.0);
  const bool single = scores.scalar_type() == at::kFloat;
  (single ? losses<float> : losses<double>)(scores, target, o, sums, each);
  if (o.reduction == kNone) {
    at::Tensor loss = at::empty({rows}, scores.options());
    for (int64_t i = 0; i < rows; ++i) {
      const double value = each[static_cast<size_t>(i)];
      if (single)
        loss.mutable_data_ptr<float>()[i] = static_cast<float>(value);
      else
        loss.mutable_data_ptr<double>()[i] = value;
    }
    return {loss, sums, at::scalar_tensor(0.0, scores.options())};
  }
  const int64_t* at = target.const_data_ptr<int64_t>();
  double total = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < rows; ++i) {
    total += each[static_cast<size_t>(i)];
    counted += at[i] != o.ignored;
  }
  const auto weight = static_cast<double>(counted);
  return {at::scalar_tensor(o.reduction == kMean ? total / weight : total, scores.options()), sums,
          at::scalar_tensor(weight, scores.options())};
}

template <class T>
void gradients(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& target,
               const at::Tensor& sums, double share, const Options& o, at::Tensor& out) {
  const int64_t rows = scores.size(0), classes = scores.size(1);
  const T *x = scores.const_data_ptr<T>(), *g = grad.const_data_ptr<T>();
  const T* log_sums = sums.const_data_ptr<T>();
  const int64_t* at = target.const_data_ptr<int64_t>();
  T* to = out.mutable_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, classes));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = to + i * classes;
      if (at[i] == o.ignored) {
        std::fill(row, row + classes, T(0));
        continue;
      }
      check_class(at[i], classes, i);
      const double by = static_cast<double>(g[o.reduction == kNone ? i : 0]) * share;
      probabilities(x + i * classes, row, classes, log_sums[i], static_cast<T>(by),
                    static_cast<T>(by * o.smoothing / static_cast<double>(classes)));
      row[at[i]] -= static_cast<T>(by * (1 - o.smoothing));
    }
  });
}

// --- elsewhere -----------------------------------------------------------------------------------

// Scores are in the wide type, or such as a kernel takes.
Losses cross_entropy_apart(const at::Tensor& scores, const at::Tensor& target, const Options& o) {
  check_labels("cross_entropy", target, scores.size(1), o.ignored);
  const at::Tensor ignored = target.eq(o.ignored), labels = target.masked_fill(ignored, 0);
  const RowSums rows = row_sums(scores, labels, o.smoothing > 0);
  at::Tensor loss = rows.sums.sub(rows.own);
  if (o.smoothing > 0) {
    const at::Tensor even = rows.plain.div(static_cast<double>(scores.size(1)));
    loss = loss.mul(1 - o.smoothing).add(rows.sums.sub(even), o.smoothing);
  }
  loss = loss.masked_fill(ignored, 0);
  if (o.reduction == kNone) return {loss, rows.sums, at::scalar_tensor(0.0, rows.sums.options())};
  const at::Tensor total = loss.sum(),
                   count = ignored.logical_not().sum().to(rows.sums.scalar_type());
  return {o.reduction == kMean ? total.div(count) : total, rows.sums, count};
}

// Of a gradient in the wide type. The labels are those that forward has checked: nothing waits here
// for the device.
void gradients_apart(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& target,
                     const at::Tensor& sums, const at::Tensor& weight, const Options& o,
                     at::Tensor& out) {
  const at::Tensor ignored = target.eq(o.ignored), labels = target.masked_fill(ignored, 0);
  const at::Tensor each = o.reduction == kMean ? grad.div(weight) : grad;
  const at::Tensor by = each.expand_as(sums).masked_fill(ignored, 0).contiguous();
  const double classes = static_cast<double>(scores.size(1));
  softmax_gradient(scores, labels, sums, by,
                   o.smoothing > 0 ? by.mul(o.smoothing / classes) : at::Tensor(),
                   by.mul(o.smoothing - 1), out);
}

// --- operators -----------------------------------------------------------------------------------

// 16-bit scores are computed with in float32, by kernels for GPUs as they are.
at::Tensor for_rows(const at::Tensor& self) {
  return (on_gpu({self}) ? self : self.to(wide_type(self))).contiguous();
}

Losses cross_entropy(const at::Tensor& self, const at::Tensor& target_, int64_t reduction,
                     int64_t ignore_index, double label_smoothing) {
  const Options o{reduction, ignore_index, label_smoothing};
  check(self, target_, o);
  const at::Tensor scores = for_rows(self), target = target_.contiguous();
  auto [loss, sums, weight] = served_apart(scores) ? cross_entropy_apart(scores, target, o)
                                                   : cross_entropy_cpu(scores, target, o);
  return {loss.to(self.scalar_type()), sums, weight};
}

at::Tensor cross_entropy_backward(const at::Tensor& grad_output, const at::Tensor& self,
                                  const at::Tensor& target_, const at::Tensor& logsumexp,
                                  const at::Tensor& total_weight, int64_t reduction,
                                  int64_t ignore_index, double label_smoothing) {
  const Options o{reduction, ignore_index, label_smoothing};
  check(self, target_, o);
  const int64_t expected = reduction == kNone ? self.size(0) : 1;
  const auto type = self.scalar_type(), wide = wide_type(self);
  if (grad_output.numel() != expected || logsumexp.numel() != self.size(0) ||
      grad_output.scalar_type() != type || logsumexp.scalar_type() != wide ||
      total_weight.numel() != 1)
    fail(ErrorKind::model,
         "[ops.cross_entropy_backward] {} gradients and {} sums of rows; expected {} and {} of "
         "type {}",
         grad_output.numel(), logsumexp.numel(), expected, self.size(0), c10::toString(type));
  const at::Tensor scores = for_rows(self), target = target_.contiguous();
  const at::Tensor grad = grad_output.to(wide).contiguous(), sums = logsumexp.contiguous();
  at::Tensor out = at::empty_like(scores);
  if (served_apart(scores)) {
    gradients_apart(grad, scores, target, sums, total_weight, o, out);
  } else {
    const double share = reduction == kMean ? 1.0 / total_weight.item<double>() : 1.0;
    (wide == at::kFloat ? gradients<float> : gradients<double>)(grad, scores, target, sums, share,
                                                                o, out);
  }
  return out.to(type);
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "cross_entropy(Tensor self, Tensor target, int reduction=1, int ignore_index=-100, "
      "float label_smoothing=0.0) -> (Tensor loss, Tensor logsumexp, Tensor total_weight)");
  m.def(
      "cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor logsumexp, "
      "Tensor total_weight, int reduction=1, int ignore_index=-100, float label_smoothing=0.0) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy", cross_entropy);
  m.impl("cross_entropy_backward", cross_entropy_backward);
}

}  // namespace
}  // namespace nns::ops
