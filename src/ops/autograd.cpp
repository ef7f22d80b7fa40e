// How LibTorch's autograd differentiates our operators. The only file that includes its headers.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/attention.h"
#include "ops/random.h"

namespace nns::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using OwnedShape = std::optional<std::vector<int64_t>>;

OwnedShape owned(const OptionalShape& shape) {
  return shape ? OwnedShape(shape->vec()) : std::nullopt;
}

OptionalShape view_of(const OwnedShape& shape) {
  return shape ? OptionalShape(*shape) : std::nullopt;
}

// Linear in its input: the derivative is the same call on the gradient.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, double p,
                            c10::string_view key, int64_t seed, int64_t step, int64_t micro,
                            OptionalShape offset, OptionalShape full) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["key"] = std::string(key);
    ctx->saved_data["place"] = std::vector<int64_t>{seed, step, micro};
    ctx->saved_data["offset"] = owned(offset);
    ctx->saved_data["full"] = owned(full);
    const at::AutoDispatchBelowADInplaceOrView below;
    return dropout(input, p, key, seed, step, micro, offset, full);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto place = ctx->saved_data["place"].toIntVector();
    const auto offset = ctx->saved_data["offset"].to<OwnedShape>();
    const auto full = ctx->saved_data["full"].to<OwnedShape>();
    variable_list result(8);
    if (gradients[0].defined())
      result[0] = dropout(gradients[0], ctx->saved_data["p"].toDouble(),
                          ctx->saved_data["key"].toStringRef(), place[0], place[1], place[2],
                          view_of(offset), view_of(full));
    return result;
  }
};

at::Tensor dropout_autograd(const at::Tensor& input, double p, c10::string_view key, int64_t seed,
                            int64_t step, int64_t micro, OptionalShape offset, OptionalShape full) {
  return DropoutFunction::apply(input, p, key, seed, step, micro, offset, full);
}

// Keeps its inputs only: backward computes the T x T matrix again.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& mask, double p,
                            bool causal, std::optional<double> scale, c10::string_view key,
                            int64_t seed, int64_t step, int64_t micro, OptionalShape offset,
                            OptionalShape full, bool enable_gqa) {
    ctx->save_for_backward({q, k, v, mask.value_or(at::Tensor())});
    ctx->saved_data["p"] = p;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["key"] = std::string(key);
    ctx->saved_data["place"] = std::vector<int64_t>{seed, step, micro};
    ctx->saved_data["offset"] = owned(offset);
    ctx->saved_data["full"] = owned(full);
    ctx->saved_data["gqa"] = enable_gqa;
    const at::AutoDispatchBelowADInplaceOrView below;
    return attention_dropout(q, k, v, mask, p, causal, scale, key, seed, step, micro, offset, full,
                             enable_gqa);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    variable_list result(14);
    if (!gradients[0].defined()) return result;
    const auto inputs = ctx->get_saved_variables();
    const auto place = ctx->saved_data["place"].toIntVector();
    const auto offset = ctx->saved_data["offset"].to<OwnedShape>();
    const auto full = ctx->saved_data["full"].to<OwnedShape>();
    const bool masked = inputs[3].defined();
    auto [q, k, v, mask] = attention_dropout_backward(
        gradients[0], inputs[0], inputs[1], inputs[2],
        masked ? std::optional(inputs[3]) : std::nullopt, ctx->saved_data["p"].toDouble(),
        ctx->saved_data["causal"].toBool(), ctx->saved_data["scale"].to<std::optional<double>>(),
        ctx->saved_data["key"].toStringRef(), place[0], place[1], place[2],
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2),
         masked && ctx->needs_input_grad(3)},
        view_of(offset), view_of(full), ctx->saved_data["gqa"].toBool());
    result[0] = q, result[1] = k, result[2] = v, result[3] = mask;
    return result;
  }
};

at::Tensor attention_autograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const std::optional<at::Tensor>& mask, double p, bool causal,
                              std::optional<double> scale, c10::string_view key, int64_t seed,
                              int64_t step, int64_t micro, OptionalShape offset, OptionalShape full,
                              bool enable_gqa) {
  return AttentionFunction::apply(q, k, v, mask, p, causal, scale, key, seed, step, micro, offset,
                                  full, enable_gqa);
}

TORCH_LIBRARY_IMPL(nnscaler, Autograd, m) {
  m.impl("dropout", dropout_autograd);
  m.impl("attention_dropout", attention_autograd);
}

}  // namespace
}  // namespace nns::ops
