#include "comm/reduce.h"

#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace nns::comm {
namespace {

void combine(at::Tensor& total, const at::Tensor& addend, Reduce reduce) {
  if (reduce == Reduce::sum)
    total.add_(addend);
  else if (reduce == Reduce::max)
    at::maximum_out(total, total, addend);
  else
    at::minimum_out(total, total, addend);
}

}  // namespace

void reduce_in_order(at::Tensor& out, const std::vector<at::Tensor>& addends, Reduce reduce) {
  const auto type = out.scalar_type();
  if (type == at::kBool) {
    at::Tensor total = addends[0].clone();
    for (size_t k = 1; k < addends.size(); ++k)
      total = reduce == Reduce::min ? at::logical_and(total, addends[k])
                                    : at::logical_or(total, addends[k]);
    out.copy_(total);
  } else if (type == at::kBFloat16 || type == at::kHalf) {
    at::Tensor total = addends[0].to(at::kFloat);
    for (size_t k = 1; k < addends.size(); ++k) combine(total, addends[k].to(at::kFloat), reduce);
    out.copy_(total);
  } else {
    out.copy_(addends[0]);
    for (size_t k = 1; k < addends.size(); ++k) combine(out, addends[k], reduce);
  }
}

}  // namespace nns::comm
