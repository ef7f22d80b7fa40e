// Attention with dropout. ATen's flash kernel refuses dropout on the CPU and its own masks come
// from a global generator; here the softmax is composed and the mask is ours.
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include "ops/random.h"

namespace nns::ops {

// softmax(q kᵀ scale + mask), dropout, times v. `offset` and `full` place the local (…, T, S)
// matrix in the unsplit one, for the dropout mask and for the causal diagonal. Through the
// dispatcher.
at::Tensor attention_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask, double p, bool causal,
                             std::optional<double> scale, std::string_view key, int64_t seed,
                             int64_t step, int64_t micro, OptionalShape offset, OptionalShape full,
                             bool enable_gqa);

// Gradients of q, k, v and mask; those that `wanted` excludes are undefined. Recomputes the
// softmax.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_dropout_backward(
    const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& mask, double p, bool causal, std::optional<double> scale,
    std::string_view key, int64_t seed, int64_t step, int64_t micro, std::array<bool, 4> wanted,
    OptionalShape offset, OptionalShape full, bool enable_gqa);

}  // namespace nns::ops
