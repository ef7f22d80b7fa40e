// Mixtures of experts: which rows go to which expert, and products of rows with the matrix of their
// expert. Rows of one expert stand together, behind those of the expert before; rows that no expert
// takes come last and give zeros.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <vector>

#include "base/error.h"

namespace nns::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNobody = -1;  // number of no expert

std::vector<int64_t> numbers(const at::Tensor& x, const char* area) {
  if (x.scalar_type() != at::kLong)
    fail(ErrorKind::model, "[ops.{}] numbers of type {}; expected Long", area,
         c10::toString(x.scalar_type()));
  const at::Tensor here = x.cpu().contiguous();
  const auto* data = here.const_data_ptr<int64_t>();
  return {data, data + here.numel()};
}

at::Tensor tensor_of(const std::vector<int64_t>& values, const at::Tensor& like) {
  const at::Tensor here = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), here.mutable_data_ptr<int64_t>());
  return here.to(like.device());
}

// The places of `index` sorted by expert, earlier ones first; where each place stands in that
// order; how many each expert has.
std::tuple<at::Tensor, at::Tensor, at::Tensor> sort_by_expert(const at::Tensor& index,
                                                              int64_t experts) {
  if (experts < 1)
    fail(ErrorKind::usage, "[ops.sort_by_expert] {} experts; expected 1 at least", experts);
  const std::vector<int64_t> of = numbers(index, "sort_by_expert");
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0), next;
  for (size_t i = 0; i < of.size(); ++i) {
    if (of[i] < kNobody || of[i] >= experts)
      fail(ErrorKind::data, "[ops.sort_by_expert] expert {} at place {}; expected -1 to {}", of[i],
           i, experts - 1);
    if (of[i] >= 0) ++counts[static_cast<size_t>(of[i])];
  }
  int64_t start = 0;
  for (const int64_t n : counts) next.push_back(std::exchange(start, start + n));
  std::vector<int64_t> order(of.size()), place(of.size());
  for (size_t i = 0; i < of.size(); ++i) {
    int64_t& to = of[i] < 0 ? start : next[static_cast<size_t>(of[i])];
    place[i] = to;
    order[static_cast<size_t>(to++)] = static_cast<int64_t>(i);
  }
  return {tensor_of(order, index), tensor_of(place, index), tensor_of(counts, index)};
}

// The expert of each of `rows` rows that come source by source, from each expert by expert.
at::Tensor experts_of_rows(const at::Tensor& counts, int64_t rows) {
  const std::vector<int64_t> of = numbers(counts, "experts_of_rows");
  const int64_t experts = counts.dim() == 2 ? counts.size(1) : 0;
  std::vector<int64_t> out;
  for (size_t i = 0; i < of.size() && experts > 0; ++i)
    out.insert(out.end(), static_cast<size_t>(of[i]), static_cast<int64_t>(i) % experts);
  if (experts == 0 || static_cast<int64_t>(out.size()) > rows)
    fail(ErrorKind::model,
         "[ops.experts_of_rows] counts [{}] of {} rows; expected [sources, "
         "experts] of {} at most",
         fmt::join(counts.sizes(), ", "), out.size(), rows);
  out.resize(static_cast<size_t>(rows), kNobody);
  return tensor_of(out, counts);
}

// No expert where the chosen one has `capacity` earlier places already.
at::Tensor limit_experts(const at::Tensor& index, int64_t experts, int64_t capacity) {
  if (experts < 1 || capacity < 1)
    fail(ErrorKind::usage, "[ops.limit_experts] {} experts that take {}; expected 1 at least",
         experts, capacity);
  std::vector<int64_t> of = numbers(index, "limit_experts");
  std::vector<int64_t> taken(static_cast<size_t>(experts), 0);
  for (int64_t& expert : of) {
    if (expert < kNobody || expert >= experts)
      fail(ErrorKind::data, "[ops.limit_experts] expert {}; expected -1 to {}", expert,
           experts - 1);
    if (expert >= 0 && taken[static_cast<size_t>(expert)]++ >= capacity) expert = kNobody;
  }
  return tensor_of(of, index).view(index.sizes());
}

// Rows of each expert: calls fn(expert, first row, number of rows), then rest(first row).
struct Groups {
  std::vector<int64_t> counts;
  int64_t used = 0;

  Groups(const at::Tensor& self, const at::Tensor& weight, const at::Tensor& counts_)
      : counts(numbers(counts_, "grouped_linear")) {
    bool fits = self.dim() == 2 && weight.dim() == 3 && self.size(1) == weight.size(2) &&
                self.scalar_type() == weight.scalar_type() &&
                static_cast<int64_t>(counts.size()) == weight.size(0);
    for (const int64_t n : counts) {
      fits = fits && n >= 0;
      used += n;
    }
    if (!fits || used > self.size(0))
      fail(ErrorKind::model,
           "[ops.grouped_linear] rows {} [{}], weight {} [{}], counts {}; expected [rows, in] and "
           "[experts, out, in] of one type, and a count an expert",
           c10::toString(self.scalar_type()), fmt::join(self.sizes(), ", "),
           c10::toString(weight.scalar_type()), fmt::join(weight.sizes(), ", "),
           fmt::join(counts, ", "));
  }
  template <class Fn>
  void each(const Fn& fn) const {
    int64_t start = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      fn(static_cast<int64_t>(e), start, counts[e]);
      start += counts[e];
    }
  }
  void clear_rest(at::Tensor& rows) const { rows.narrow(0, used, rows.size(0) - used).zero_(); }
};

at::Tensor grouped_linear(const at::Tensor& self, const at::Tensor& weight,
                          const at::Tensor& counts) {
  const Groups groups(self, weight, counts);
  at::Tensor out = at::empty({self.size(0), weight.size(1)}, self.options());
  groups.each([&](int64_t e, int64_t start, int64_t n) {
    if (n == 0) return;
    at::Tensor to = out.narrow(0, start, n);
    at::mm_out(to, self.narrow(0, start, n), weight[e].t());
  });
  groups.clear_rest(out);
  return out;
}

std::tuple<at::Tensor, at::Tensor> grouped_linear_backward(const at::Tensor& grad_output,
                                                           const at::Tensor& self,
                                                           const at::Tensor& weight,
                                                           const at::Tensor& counts,
                                                           std::array<bool, 2> output_mask) {
  const Groups groups(self, weight, counts);
  if (grad_output.dim() != 2 || grad_output.size(0) != self.size(0) ||
      grad_output.size(1) != weight.size(1))
    fail(ErrorKind::model, "[ops.grouped_linear_backward] gradient [{}] of rows [{}]",
         fmt::join(grad_output.sizes(), ", "), fmt::join(self.sizes(), ", "));
  at::Tensor d_self, d_weight;
  if (output_mask[0]) d_self = at::empty(self.sizes(), self.options());
  if (output_mask[1]) d_weight = at::empty(weight.sizes(), weight.options());
  groups.each([&](int64_t e, int64_t start, int64_t n) {
    const at::Tensor grad = grad_output.narrow(0, start, n);
    if (d_self.defined() && n > 0) {
      at::Tensor to = d_self.narrow(0, start, n);
      at::mm_out(to, grad, weight[e]);
    }
    if (!d_weight.defined()) return;
    at::Tensor to = d_weight[e];
    if (n > 0)
      at::mm_out(to, grad.t(), self.narrow(0, start, n));
    else
      to.zero_();  // an expert without rows
  });
  if (d_self.defined()) groups.clear_rest(d_self);
  return {d_self, d_weight};
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, const at::Tensor& weight,
                            const at::Tensor& counts) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({self, weight, counts});
    return grouped_linear(self, weight, counts);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    auto [d_self, d_weight] =
        grouped_linear_backward(gradients[0], saved[0], saved[1], saved[2],
                                {ctx->needs_input_grad(0), ctx->needs_input_grad(1)});
    return {d_self, d_weight, at::Tensor()};
  }
};

at::Tensor grouped_linear_autograd(const at::Tensor& self, const at::Tensor& weight,
                                   const at::Tensor& counts) {
  return GroupedLinear::apply(self, weight, counts);
}

at::Tensor activated(const at::Tensor& x, c10::string_view activation) {
  if (activation == "silu") return at::silu(x);
  if (activation == "gelu") return at::gelu(x);
  if (activation == "relu") return at::relu(x);
  fail(ErrorKind::usage, "[ops.experts] activation '{}'; expected silu, gelu or relu",
       std::string(activation));
}

// Σ over the chosen experts of weight · expert(x).
at::Tensor experts(const at::Tensor& self, const at::Tensor& index, const at::Tensor& weight,
                   const at::Tensor& up, const at::Tensor& down,
                   const std::optional<at::Tensor>& gate, c10::string_view activation, int64_t) {
  const int64_t chosen = index.size(-1), width = self.size(-1);
  const auto [order, place, counts] = sort_by_expert(index, up.size(0));
  const at::Tensor rows =
      self.reshape({-1, width}).index_select(0, at::floor_divide(order, chosen));
  at::Tensor hidden = GroupedLinear::apply(rows, up, counts);
  hidden = gate ? activated(GroupedLinear::apply(rows, *gate, counts), activation).mul(hidden)
                : activated(hidden, activation);
  auto sizes = index.sizes().vec();
  sizes.push_back(width);
  const at::Tensor each =
      GroupedLinear::apply(hidden, down, counts).index_select(0, place).view(sizes);
  return at::matmul(weight.unsqueeze(-2), each).squeeze(-2);
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def("sort_by_expert(Tensor index, int experts) -> (Tensor order, Tensor place, Tensor counts)");
  m.def("experts_of_rows(Tensor counts, int rows) -> Tensor");
  m.def("limit_experts(Tensor index, int experts, int capacity) -> Tensor");
  m.def("grouped_linear(Tensor self, Tensor weight, Tensor counts) -> Tensor");
  m.def(
      "grouped_linear_backward(Tensor grad_output, Tensor self, Tensor weight, Tensor counts, "
      "bool[2] output_mask) -> (Tensor, Tensor)");
  m.def(
      "experts(Tensor self, Tensor index, Tensor weight, Tensor up, Tensor down, "
      "Tensor? gate=None, str activation=\"silu\", int capacity=0) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeImplicitAutograd, m) {
  m.impl("experts", experts);
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("sort_by_expert", sort_by_expert);
  m.impl("experts_of_rows", experts_of_rows);
  m.impl("limit_experts", limit_experts);
  m.impl("grouped_linear", grouped_linear);
  m.impl("grouped_linear_backward", grouped_linear_backward);
}

TORCH_LIBRARY_IMPL(nnscaler, Autograd, m) {
  m.impl("grouped_linear", grouped_linear_autograd);
}

}  // namespace
}  // namespace nns::ops
