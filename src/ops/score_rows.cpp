#include "ops/score_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sub.h>

#include "base/error.h"
#include "ops/gpu.h"

namespace nns::ops {

at::ScalarType wide_type(const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return narrow ? at::kFloat : x.scalar_type();
}

bool served_apart(const at::Tensor& scores) {
  return !scores.is_cpu() || on_gpu({scores});
}

void check_labels(const char* op, const at::Tensor& labels, int64_t classes,
                  std::optional<int64_t> ignored) {
  const at::Tensor held = labels.cpu();
  const int64_t* at = held.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < held.numel(); ++i)
    if (at[i] != ignored && (at[i] < 0 || at[i] >= classes))
      fail(ErrorKind::data, "[ops.{}] target {} of row {}; expected 0 to {}", op, at[i], i,
           classes - 1);
}

RowSums row_sums(const at::Tensor& scores, const at::Tensor& labels, bool plain) {
  if (!on_gpu({scores}))
    return {at::logsumexp(scores, 1), at::gather(scores, 1, labels.unsqueeze(1)).squeeze(1),
            plain ? scores.sum(1) : at::Tensor()};
  RowSums out;
  out.sums = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  out.own = at::empty_like(out.sums);
  if (plain) out.plain = at::empty_like(out.sums);
  launch(scores, &gpu::Kernels::log_sums,
         gpu::LogSums{*gpu_type(scores), scores.size(0), scores.size(1), gpu_read(scores),
                      labels.const_data_ptr<int64_t>(), out.sums.mutable_data_ptr<float>(),
                      out.own.mutable_data_ptr<float>(),
                      plain ? out.plain.mutable_data_ptr<float>() : nullptr});
  return out;
}

void softmax_gradient(const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& sums,
                      const at::Tensor& by, const at::Tensor& less, const at::Tensor& own,
                      at::Tensor& out) {
  if (on_gpu({scores})) {
    launch(scores, &gpu::Kernels::softmax,
           gpu::Softmax{*gpu_type(scores), scores.size(0), scores.size(1), gpu_read(scores),
                        labels.const_data_ptr<int64_t>(), sums.const_data_ptr<float>(),
                        by.const_data_ptr<float>(),
                        less.defined() ? less.const_data_ptr<float>() : nullptr,
                        own.const_data_ptr<float>(), gpu_write(out)});
    return;
  }
  at::sub_out(out, scores, sums.unsqueeze(1));
  out.exp_().mul_(by.unsqueeze(1));
  if (less.defined()) out.sub_(less.unsqueeze(1));
  out.masked_fill_(by.eq(0).unsqueeze(1), 0);
  out.scatter_add_(1, labels.unsqueeze(1), own.unsqueeze(1));
}

}  // namespace nns::ops
