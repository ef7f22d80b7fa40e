// Cross-entropy of x · weightᵀ without the whole product: rows are taken in chunks, so that no more
// than chunk × classes scores exist at any time. linear_scores gives what the loss is made of (the
// score of the label and log Σ exp of a row) and computes scores again in its derivative, so it
// serves classes that lie on several devices; linear_cross_entropy_gradients makes loss and
// gradients of a sum in one pass over the scores.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "ops/class_rows.h"
#include "ops/gpu.h"
#include "ops/score_rows.h"

namespace nns::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum Reduction : int64_t { kNone = 0, kSum = 2 };

// Operands as matrices, and the buffer of the scores of a chunk.
struct Rows {
  at::Tensor x, weight, target;
  int64_t rows, classes, chunk;
  at::Tensor buffer;

  Rows(const at::Tensor& self, const at::Tensor& weight_, const at::Tensor& target_, int64_t chunk_)
      : weight(weight_) {
    const bool fits = self.dim() >= 1 && weight.dim() == 2 && self.size(-1) == weight.size(1) &&
                      self.sizes().slice(0, self.dim() - 1) == target_.sizes() &&
                      self.is_floating_point() && weight.scalar_type() == self.scalar_type() &&
                      target_.scalar_type() == at::kLong;
    if (!fits)
      fail(ErrorKind::model,
           "[ops.linear_cross_entropy] rows {} [{}], weight {} [{}], target {} [{}]; expected "
           "floating [..., width] and [classes, width] of one type, and Long [...]",
           c10::toString(self.scalar_type()), fmt::join(self.sizes(), ", "),
           c10::toString(weight.scalar_type()), fmt::join(weight.sizes(), ", "),
           c10::toString(target_.scalar_type()), fmt::join(target_.sizes(), ", "));
    if (chunk_ < 1)
      fail(ErrorKind::usage, "[ops.linear_cross_entropy] chunk = {}; expected 1 row at least",
           chunk_);
    rows = target_.numel(), classes = weight.size(0);
    x = self.reshape({rows, self.size(-1)});
    target = target_.reshape({rows}).contiguous();
    chunk = std::min(chunk_, std::max<int64_t>(rows, 1));
    buffer = at::empty({chunk, classes}, x.options());
  }

  // Calls fn(first row, number of rows, their scores in the wide type; those that a kernel for GPUs
  // takes as they are).
  template <class Fn>
  void each(const Fn& fn) {
    for (int64_t at = 0; at < rows; at += chunk) {
      const int64_t n = std::min(chunk, rows - at);
      at::Tensor scores = buffer.narrow(0, 0, n);
      at::mm_out(scores, x.narrow(0, at, n), weight.t());
      fn(at, n, on_gpu({scores}) ? scores : scores.to(wide_type(x)));
    }
  }
};

template <class Fn>
void parallel_rows(int64_t rows, int64_t classes, const Fn& fn) {
  const int64_t grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, classes));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

// log Σ exp of each row.
at::Tensor log_sums(const at::Tensor& scores) {
  at::Tensor out = at::empty({scores.size(0)}, scores.options());
  const int64_t classes = scores.size(1);
  const auto fill = [&](auto zero) {
    using T = decltype(zero);
    const T* from = scores.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_rows(scores.size(0), classes, [&](int64_t i) {
      to[i] = static_cast<T>(log_sum_exp(from + i * classes, classes));
    });
  };
  scores.scalar_type() == at::kFloat ? fill(0.0F) : fill(0.0);
  return out;
}

// scores becomes by · softmax, row by row.
void to_softmax(at::Tensor& scores, const at::Tensor& sums, const at::Tensor& by) {
  const int64_t classes = scores.size(1);
  const auto fill = [&](auto zero) {
    using T = decltype(zero);
    T* row = scores.mutable_data_ptr<T>();
    const T *shift = sums.const_data_ptr<T>(), *factor = by.const_data_ptr<T>();
    parallel_rows(scores.size(0), classes, [&](int64_t i) {
      T* at = row + i * classes;
      if (factor[i] == 0)
        std::fill(at, at + classes, T(0));
      else
        probabilities(at, at, classes, shift[i], factor[i], T(0));
    });
  };
  scores.scalar_type() == at::kFloat ? fill(0.0F) : fill(0.0);
}

// log Σ exp of each row, and the score of its label.
std::tuple<at::Tensor, at::Tensor> sums_and_own(const at::Tensor& scores,
                                                const at::Tensor& labels) {
  if (!served_apart(scores))
    return {log_sums(scores), at::gather(scores, 1, labels.unsqueeze(1)).squeeze(1)};
  const RowSums rows = row_sums(scores, labels, false);
  return {rows.sums, rows.own};
}

// scores becomes by · softmax, row by row, plus `own` at the labels.
void to_gradient(at::Tensor& scores, const at::Tensor& labels, const at::Tensor& sums,
                 const at::Tensor& by, const at::Tensor& own) {
  if (served_apart(scores)) return softmax_gradient(scores, labels, sums, by, {}, own, scores);
  to_softmax(scores, sums, by);
  scores.scatter_add_(1, labels.unsqueeze(1), own.unsqueeze(1));
}

// Gradients of the operands, summed over chunks: those of the weight in the wide type.
struct Gradients {
  at::Tensor x, weight;

  Gradients(const Rows& r, std::array<bool, 2> wanted) {
    if (wanted[0]) x = at::empty(r.x.sizes(), r.x.options());
    if (wanted[1]) weight = at::zeros(r.weight.sizes(), r.weight.options().dtype(wide_type(r.x)));
  }
  void add(const Rows& r, int64_t at, int64_t n, const at::Tensor& d_scores) {
    const at::Tensor d = d_scores.to(r.x.scalar_type());
    if (x.defined()) {
      at::Tensor to = x.narrow(0, at, n);
      at::mm_out(to, d, r.weight);
    }
    if (!weight.defined()) return;
    if (weight.scalar_type() == d.scalar_type())
      weight.addmm_(d.t(), r.x.narrow(0, at, n));
    else
      weight.add_(at::mm(d.t(), r.x.narrow(0, at, n)));
  }
  at::Tensor of_x(const at::Tensor& self) const { return x.defined() ? x.view_as(self) : x; }
  at::Tensor of_weight(const at::Tensor& like) const {
    return weight.defined() ? weight.to(like.scalar_type()) : weight;
  }
};

// The score of each row's label, and log Σ exp of its scores: shaped as the labels.
std::tuple<at::Tensor, at::Tensor> linear_scores(const at::Tensor& self, const at::Tensor& weight,
                                                 const at::Tensor& target, int64_t chunk) {
  Rows r(self, weight, target, chunk);
  check_labels("linear_cross_entropy", r.target, r.classes, std::nullopt);
  const auto options = r.x.options().dtype(wide_type(r.x));
  at::Tensor own = at::empty({r.rows}, options), sums = at::empty({r.rows}, options);
  r.each([&](int64_t at, int64_t n, const at::Tensor& scores) {
    const auto [sum, one] = sums_and_own(scores, r.target.narrow(0, at, n));
    own.narrow(0, at, n).copy_(one);
    sums.narrow(0, at, n).copy_(sum);
  });
  return {own.view(target.sizes()), sums.view(target.sizes())};
}

// Computes the scores again.
std::tuple<at::Tensor, at::Tensor> linear_scores_backward(
    const at::Tensor& grad_own, const at::Tensor& grad_sum, const at::Tensor& self,
    const at::Tensor& weight, const at::Tensor& target, const at::Tensor& logsumexp, int64_t chunk,
    std::array<bool, 2> output_mask) {
  Rows r(self, weight, target, chunk);
  if (grad_own.numel() != r.rows || grad_sum.numel() != r.rows || logsumexp.numel() != r.rows)
    fail(ErrorKind::model,
         "[ops.linear_scores_backward] {} and {} gradients and {} sums of {} rows",
         grad_own.numel(), grad_sum.numel(), logsumexp.numel(), r.rows);
  Gradients out(r, output_mask);
  const auto type = wide_type(r.x);
  const auto row = [&](const at::Tensor& x) { return x.to(type).reshape({r.rows}).contiguous(); };
  const at::Tensor own = row(grad_own), by = row(grad_sum), sums = row(logsumexp);
  r.each([&](int64_t at, int64_t n, at::Tensor scores) {
    to_gradient(scores, r.target.narrow(0, at, n), sums.narrow(0, at, n), by.narrow(0, at, n),
                own.narrow(0, at, n));
    out.add(r, at, n, scores);
  });
  return {out.of_x(self), out.of_weight(weight)};
}

// The summed loss, always made, and its gradients, in one pass.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_gradients(
    const at::Tensor& self, const at::Tensor& weight, const at::Tensor& target,
    int64_t ignore_index, int64_t chunk, std::array<bool, 3> output_mask) {
  Rows r(self, weight, target, chunk);
  check_labels("linear_cross_entropy", r.target, r.classes, ignore_index);
  Gradients out(r, {output_mask[1], output_mask[2]});
  const auto options = r.x.options().dtype(wide_type(r.x));
  at::Tensor each = at::empty({r.rows}, options);
  const at::Tensor counts = r.target.ne(ignore_index).to(wide_type(r.x));
  const at::Tensor label = r.target.masked_fill(r.target.eq(ignore_index), 0);
  r.each([&](int64_t at, int64_t n, at::Tensor scores) {
    const at::Tensor one = counts.narrow(0, at, n);
    const at::Tensor place = label.narrow(0, at, n);
    const auto [sums, own] = sums_and_own(scores, place);
    each.narrow(0, at, n).copy_(sums.sub(own));
    if (!output_mask[1] && !output_mask[2]) return;
    to_gradient(scores, place, sums, one, one.neg());
    out.add(r, at, n, scores);
  });
  const at::Tensor loss = each.masked_fill(r.target.eq(ignore_index), 0).sum();
  return {loss, out.of_x(self), out.of_weight(weight)};
}

// Keeps its operands and a number a row.
struct ScoresFunction : torch::autograd::Function<ScoresFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& self,
                               const at::Tensor& weight, const at::Tensor& target, int64_t chunk) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [own, sums] = linear_scores(self, weight, target, chunk);
    ctx->save_for_backward({self, weight, target, sums});
    ctx->saved_data["chunk"] = chunk;
    return {own, sums};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto or_zeros = [&](const at::Tensor& g) {
      return g.defined() ? g : at::zeros_like(saved[3]);
    };
    auto [x, weight] = linear_scores_backward(
        or_zeros(gradients[0]), or_zeros(gradients[1]), saved[0], saved[1], saved[2], saved[3],
        ctx->saved_data["chunk"].toInt(), {ctx->needs_input_grad(0), ctx->needs_input_grad(1)});
    return {x, weight, at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> scores_autograd(const at::Tensor& self, const at::Tensor& weight,
                                                   const at::Tensor& target, int64_t chunk) {
  const variable_list out = ScoresFunction::apply(self, weight, target, chunk);
  return {out[0], out[1]};
}

at::Tensor linear_cross_entropy(const at::Tensor& self, const at::Tensor& weight,
                                const at::Tensor& target, int64_t reduction, int64_t ignore_index,
                                int64_t chunk) {
  if (reduction != kNone && reduction != kSum)
    fail(ErrorKind::usage, "[ops.linear_cross_entropy] reduction {}; expected 0 (none) or 2 (sum)",
         reduction);
  static const auto scores =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("nnscaler::linear_scores", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                    const at::Tensor&, int64_t)>();
  const at::Tensor ignored = target.eq(ignore_index);
  const auto [own, sums] = scores.call(self, weight, target.masked_fill(ignored, 0), chunk);
  const at::Tensor each = sums.sub(own).masked_fill(ignored, 0);
  return reduction == kNone ? each : each.sum();
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "linear_cross_entropy(Tensor self, Tensor weight, Tensor target, int reduction=2, "
      "int ignore_index=-100, int chunk=1024) -> Tensor");
  m.def(
      "linear_cross_entropy_gradients(Tensor self, Tensor weight, Tensor target, "
      "int ignore_index, int chunk, bool[3] output_mask) -> (Tensor loss, Tensor, Tensor)");
  m.def(
      "linear_scores(Tensor self, Tensor weight, Tensor target, int chunk=1024) "
      "-> (Tensor own, Tensor logsumexp)");
  m.def(
      "linear_scores_backward(Tensor grad_own, Tensor grad_sum, Tensor self, Tensor weight, "
      "Tensor target, Tensor logsumexp, int chunk, bool[2] output_mask) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeImplicitAutograd, m) {
  m.impl("linear_cross_entropy", linear_cross_entropy);
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("linear_cross_entropy_gradients", linear_cross_entropy_gradients);
  m.impl("linear_scores", linear_scores);
  m.impl("linear_scores_backward", linear_scores_backward);
}

TORCH_LIBRARY_IMPL(nnscaler, Autograd, m) {
  m.impl("linear_scores", scores_autograd);
}

}  // namespace
}  // namespace nns::ops
