// What attention to pieces of a text is put together with: nnscaler::join_attention joins what
// queries get from two sets of keys, by the logarithms of their sums of exponentials;
// nnscaler::add_rows adds to some rows. Rows lie along dimension 2.
#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include "base/error.h"

namespace nns::ops {
namespace {

// Rows [start, start + those of `other`) of a tensor.
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& other, int64_t start, const char* area) {
  const bool fits = x.dim() >= 3 && other.dim() == x.dim() && start >= 0 &&
                    start + other.size(2) <= x.size(2) &&
                    x.sizes().slice(0, 2) == other.sizes().slice(0, 2) &&
                    x.sizes().slice(3) == other.sizes().slice(3);
  if (!fits)
    fail(ErrorKind::model, "[ops.{}] rows [{}] of [{}] from {} on", area,
         fmt::join(other.sizes(), ", "), fmt::join(x.sizes(), ", "), start);
  return x.narrow(2, start, other.size(2));
}

std::tuple<at::Tensor, at::Tensor> join_attention(const at::Tensor& self,
                                                  const at::Tensor& logsumexp,
                                                  const at::Tensor& other,
                                                  const at::Tensor& other_logsumexp,
                                                  int64_t start) {
  at::Tensor out = self.clone(), sums = logsumexp.clone();
  at::Tensor rows = rows_of(out, other, start, "join_attention");
  at::Tensor old = rows_of(sums, other_logsumexp, start, "join_attention");
  const at::Tensor both = at::logaddexp(old, other_logsumexp);
  const auto share = [&](const at::Tensor& part) { return at::exp(part.sub(both)).unsqueeze(3); };
  rows.copy_(rows.mul(share(old)).add_(other.mul(share(other_logsumexp))));
  old.copy_(both);
  return {out, sums};
}

at::Tensor add_rows(const at::Tensor& self, const at::Tensor& other, int64_t start) {
  at::Tensor out = self.clone();
  rows_of(out, other, start, "add_rows").add_(other);
  return out;
}

TORCH_LIBRARY_FRAGMENT(nnscaler, m) {
  m.def(
      "join_attention(Tensor self, Tensor logsumexp, Tensor other, Tensor other_logsumexp, "
      "int start) -> (Tensor out, Tensor logsumexp)");
  m.def("add_rows(Tensor self, Tensor other, int start) -> Tensor");
}

TORCH_LIBRARY_IMPL(nnscaler, CompositeExplicitAutograd, m) {
  m.impl("join_attention", join_attention);
  m.impl("add_rows", add_rows);
}

}  // namespace
}  // namespace nns::ops
