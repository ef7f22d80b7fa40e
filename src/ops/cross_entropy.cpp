// nnscaler::cross_entropy and its derivative: log-softmax and loss of classes in one pass that
// keeps one number a row. Sums over rows run in double and in order, whatever the threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "ops/kernels.h"

namespace nns::ops {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

constexpr int64_t kWork = 16384;  // elements that are worth a thread

struct Options {
  int64_t reduction, ignored;
  double smoothing;
};

void check(const at::Tensor& scores, const at::Tensor& target, const Options& o) {
  const bool fits = scores.dim() == 2 && target.dim() == 1 && target.size(0) == scores.size(0);
  const bool typed = scores.scalar_type() == at::kFloat || scores.scalar_type() == at::kDouble;
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

// 16-bit scores are computed with in float32, and so are their sums of rows.
bool is_narrow(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

void check_class(int64_t at, int64_t classes, int64_t row) {
  if (at < 0 || at >= classes)
    fail(ErrorKind::data, "[ops.cross_entropy] target {} of row {}; expected 0 to {}", at, row,
         classes - 1);
}

template <class T>
double log_sum_exp(const T* x, int64_t count) {
  T largest = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  if constexpr (std::is_same_v<T, float>) {
    return ops::log_sum_exp(x, count, largest);
  } else {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - largest);
    return largest + std::log(sum);
  }
}

template <class T>
void probabilities(const T* x, T* to, int64_t count, T shift, T factor, T less) {
  if constexpr (std::is_same_v<T, float>)
    ops::probabilities(x, to, count, shift, factor, less);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = factor * std::exp(x[i] - shift) - less;
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

std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy(const at::Tensor& self,
                                                             const at::Tensor& target_,
                                                             int64_t reduction,
                                                             int64_t ignore_index,
                                                             double label_smoothing) {
  if (is_narrow(self)) {
    const auto [loss, log_sums, count] =
        cross_entropy(self.to(at::kFloat), target_, reduction, ignore_index, label_smoothing);
    return {loss.to(self.scalar_type()), log_sums, count};
  }
  const Options o{reduction, ignore_index, label_smoothing};
  check(self, target_, o);
  const at::Tensor scores = self.contiguous(), target = target_.contiguous();
  const int64_t rows = scores.size(0);
  at::Tensor sums = at::empty({rows}, scores.options());
  std::vector<double> each(static_cast<size_t>(rows), 0.0);
  const bool single = scores.scalar_type() == at::kFloat;
  (single ? losses<float> : losses<double>)(scores, target, o, sums, each);
  if (reduction == kNone) {
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
    counted += at[i] != ignore_index;
  }
  const auto weight = static_cast<double>(counted);
  return {at::scalar_tensor(reduction == kMean ? total / weight : total, scores.options()), sums,
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

at::Tensor cross_entropy_backward(const at::Tensor& grad_output, const at::Tensor& self,
                                  const at::Tensor& target, const at::Tensor& logsumexp,
                                  const at::Tensor& total_weight, int64_t reduction,
                                  int64_t ignore_index, double label_smoothing) {
  if (is_narrow(self) && grad_output.scalar_type() == self.scalar_type())
    return cross_entropy_backward(grad_output.to(at::kFloat), self.to(at::kFloat), target,
                                  logsumexp, total_weight, reduction, ignore_index, label_smoothing)
        .to(self.scalar_type());
  const Options o{reduction, ignore_index, label_smoothing};
  check(self, target, o);
  const int64_t expected = reduction == kNone ? self.size(0) : 1;
  const auto type = self.scalar_type();
  if (grad_output.numel() != expected || logsumexp.numel() != self.size(0) ||
      grad_output.scalar_type() != type || logsumexp.scalar_type() != type ||
      total_weight.numel() != 1)
    fail(ErrorKind::model,
         "[ops.cross_entropy_backward] {} gradients and {} sums of rows; expected {} and {} of "
         "type {}",
         grad_output.numel(), logsumexp.numel(), expected, self.size(0), c10::toString(type));
  const at::Tensor scores = self.contiguous();
  at::Tensor out = at::empty_like(scores);
  const double share = reduction == kMean ? 1.0 / total_weight.item<double>() : 1.0;
  (type == at::kFloat ? gradients<float>
                      : gradients<double>)(grad_output.contiguous(), scores, target.contiguous(),
                                           logsumexp.contiguous(), share, o, out);
  return out;
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

TORCH_LIBRARY_IMPL(nnscaler, CPU, m) {
  m.impl("cross_entropy", cross_entropy);
  m.impl("cross_entropy_backward", cross_entropy_backward);
}

}  // namespace
}  // namespace nns::ops
