// The list of operator cases.
#include "support/operator_cases.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>

#include "support/graph_text.h"

namespace nns::test {
namespace {

std::vector<OperatorCase> functions_of_one() {
  std::vector<OperatorCase> out;
  const std::pair<const char*, const char*> groups[] = {
      {"",
       "relu relu6 silu mish sigmoid tanh log_sigmoid softplus elu celu selu leaky_relu "
       "hardtanh hardswish hardsigmoid gelu neg abs square exp exp2 expm1 sin cos tan atan "
       "sinh cosh asinh erf erfc nan_to_num sign sgn ceil floor round trunc alias contiguous "
       "clone"},
      {"~", "asin acos atanh"},
      {"+", "sqrt rsqrt reciprocal log log2 log10 log1p"},
      {"^", "acosh"}};
  for (const auto& [mark, names] : groups) {
    std::istringstream words(names);
    for (std::string name; words >> name;)
      out.push_back({fmt::format("a=4,6{}", mark), fmt::format("%y = aten::{}(self=%a)", name)});
  }
  return out;
}

const OperatorCase kCases[] = {
    // --- activations with arguments
    {"a=4,6f", "%y = aten::gelu(self=%a)"},
    {"a=4,6", "%y = aten::gelu(self=%a, approximate=\"tanh\")"},
    {"a=4,6", "%y = aten::softplus(self=%a, beta=2.0, threshold=1.0)"},
    {"a=4,6", "%y = aten::elu(self=%a, alpha=0.5, scale=1.5, input_scale=2.0)"},
    {"a=4,6", "%y = aten::celu(self=%a, alpha=0.5)"},
    {"a=4,6", "%y = aten::leaky_relu(self=%a, negative_slope=0.3)"},
    {"a=4,6", "%y = aten::hardtanh(self=%a, min_val=-0.3, max_val=0.6)"},
    {"a=4,6", "%y = aten::glu(self=%a, dim=0)"},
    {"a=4,6 w=6", "%y = aten::prelu(self=%a, weight=%w)"},
    {"a=4,6 w=1", "%y = aten::prelu(self=%a, weight=%w)"},
    // --- of two
    {"a=4,6 b=6", "%y = aten::add.Tensor(self=%a, other=%b, alpha=2)"},
    {"a=4,6", "%y = aten::add.Scalar(self=%a, other=0.5)"},
    {"a=4,6 b=4,1", "%y = aten::sub.Tensor(self=%a, other=%b, alpha=0.5)"},
    {"a=4,6 b=4,6", "%y = aten::rsub.Tensor(self=%a, other=%b, alpha=3)"},
    {"a=4,6 b=1,6", "%y = aten::mul.Tensor(self=%a, other=%b)"},
    {"a=4,6", "%y = aten::mul.Scalar(self=%a, other=2.5)"},
    {"a=4,6 b=6+", "%y = aten::div.Tensor(self=%a, other=%b)"},
    {"a=4,6", "%y = aten::div.Scalar(self=%a, other=4)"},
    {"a=4,6 b=6+", "%y = aten::div.Tensor_mode(self=%a, other=%b, rounding_mode=\"floor\")"},
    {"a=4,6", "%y = aten::pow.Tensor_Scalar(self=%a, exponent=3.0)"},
    {"a=4,6", "%y = aten::pow.Tensor_Scalar(self=%a, exponent=2)"},
    {"a=4,6", "%y = aten::pow.Tensor_Scalar(self=%a, exponent=1.0)"},
    {"a=4,6", "%y = aten::pow.Tensor_Scalar(self=%a, exponent=0.0)"},
    {"a=4,6+ b=6", "%y = aten::pow.Tensor_Tensor(self=%a, exponent=%b)"},
    {"a=4,6", "%y = aten::pow.Scalar(self=1.5, exponent=%a)"},
    {"a=4,6+", "%y = aten::pow.Scalar(self=0.0, exponent=%a)"},
    {"a=4,6 b=6", "%y = aten::maximum(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::minimum(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::max.other(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::min.other(self=%a, other=%b)"},
    {"a=4,6 b=6+", "%y = aten::remainder.Tensor(self=%a, other=%b)"},
    {"b=6+", "%y = aten::remainder.Scalar_Tensor(self=2.3, other=%b)"},
    {"a=4,6 b=6+", "%y = aten::fmod.Tensor(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::atan2(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::logaddexp(self=%a, other=%b)"},
    // --- of three
    {"m=4,6? a=4,6 b=6", "%y = aten::where.self(condition=%m, self=%a, other=%b)"},
    {"m=4,6? a=4,6", "%y = aten::where.ScalarOther(condition=%m, self=%a, other=0.5)"},
    {"m=4,6? a=4,6", "%y = aten::masked_fill.Scalar(self=%a, mask=%m, value=0.5)"},
    {"m=4,6? a=4,6 v=", "%y = aten::masked_fill.Tensor(self=%a, mask=%m, value=%v)"},
    {"a=4,6 b=4,6", "%y = aten::lerp.Scalar(self=%a, end=%b, weight=0.3)"},
    {"a=4,6 b=4,6 w=6", "%y = aten::lerp.Tensor(self=%a, end=%b, weight=%w)"},
    {"a=4,6 b=6 c=4,1", "%y = aten::addcmul(self=%a, tensor1=%b, tensor2=%c, value=0.5)"},
    {"a=4,6 b=6 c=4,1+", "%y = aten::addcdiv(self=%a, tensor1=%b, tensor2=%c, value=0.5)"},
    {"a=4,6", "%y = aten::clamp(self=%a, min=-0.5, max=0.4)"},
    {"a=4,6", "%y = aten::clamp(self=%a, min=-0.5)"},
    {"a=4,6", "%y = aten::clamp_max(self=%a, max=0.2)"},
    {"a=4,6 l=6 h=6", "%y = aten::clamp.Tensor(self=%a, min=%l, max=%h)"},
    {"a=4,6 l=6", "%y = aten::clamp.Tensor(self=%a, min=%l)"},
    {"a=4,6 h=6", "%y = aten::clamp.Tensor(self=%a, max=%h)"},
    {"a=4,6", "%y = aten::fill.Scalar(self=%a, value=0.5)"},
    {"a=4,6 v=", "%y = aten::fill.Tensor(self=%a, value=%v)"},
    {"a=4,6", "%y = aten::to.dtype(self=%a, dtype=float32)"},
    {"a=4,6 b=2f", "%y = aten::type_as(self=%a, other=%b)"},
    // --- reductions
    {"a=4,6", "%y = aten::sum(self=%a)"},
    {"a=4,6", "%y = aten::sum.dim_IntList(self=%a, dim=[1])"},
    {"a=4,6,2", "%y = aten::sum.dim_IntList(self=%a, dim=[0, -1], keepdim=true)"},
    {"a=4,6", "%y = aten::mean(self=%a)"},
    {"a=4,6", "%y = aten::mean.dim(self=%a, dim=[1], keepdim=true)"},
    {"a=4,6", "%y = aten::var.correction(self=%a, dim=[1], correction=1)"},
    {"a=4,6", "%y = aten::var.dim(self=%a, dim=[0], unbiased=false)"},
    {"a=4,6", "%y = aten::std.correction(self=%a, dim=[1])"},
    {"a=4,6", "%y, %z = aten::var_mean.correction(self=%a, dim=[1])"},
    {"a=4,6", "%y = aten::amax(self=%a, dim=[1])"},
    {"a=4,6", "%y = aten::amin(self=%a, dim=[0], keepdim=true)"},
    {"a=4,6", "%y = aten::max(self=%a)"},
    {"a=4,6", "%y = aten::min(self=%a)"},
    {"a=4,6", "%y, %i = aten::max.dim(self=%a, dim=1)"},
    {"a=4,6", "%y, %i = aten::min.dim(self=%a, dim=0, keepdim=true)"},
    {"a=4,6", "%y, %i = aten::topk(self=%a, k=3, dim=1)"},
    {"a=4,6", "%y, %i = aten::sort(self=%a, dim=1, descending=true)"},
    {"a=4,6", "%y = aten::logsumexp(self=%a, dim=[1])"},
    {"a=4,6", "%y = aten::cumsum(self=%a, dim=1)"},
    {"a=", "%y = aten::cumsum(self=%a, dim=0)"},
    {"a=4,6", "%y = aten::softmax.int(self=%a, dim=-1)"},
    {"a=4,6", "%y = aten::_softmax(self=%a, dim=1, half_to_float=false)"},
    {"a=4,6", "%y = aten::log_softmax.int(self=%a, dim=0)"},
    {"a=4,6", "%y = aten::_log_softmax(self=%a, dim=1, half_to_float=false)"},
    {"a=4,6", "%y = aten::norm.ScalarOpt_dim(self=%a, p=2, dim=[1])"},
    {"a=4,6", "%y = aten::linalg_vector_norm(self=%a, ord=2, dim=[1])"},
    {"a=4,6", "%y = aten::linalg_vector_norm(self=%a, ord=1.0, dim=[1], keepdim=true)"},
    {"a=4,6", "%y = aten::linalg_vector_norm(self=%a, ord=3.0)"},
    {"a=4,6", "%y = aten::linalg_vector_norm(self=%a, ord=inf, dim=[0])"},
    {"a=4,6+", "%y = aten::linalg_vector_norm(self=%a, ord=0.5, dim=[1])"},
    // --- shapes
    {"a=4,6", "%y = aten::reshape(self=%a, shape=[8, 3])"},
    {"a=4,6", "%y = aten::view(self=%a, size=[4, 2, -1])"},
    {"a=4,6", "%y = aten::flatten.using_ints(self=%a, start_dim=0, end_dim=-1)"},
    {"a=4,6", "%y = aten::unflatten.int(self=%a, dim=1, sizes=[2, 3])"},
    {"a=4,1,6", "%y = aten::squeeze.dim(self=%a, dim=1)"},
    {"a=4,6", "%y = aten::unsqueeze(self=%a, dim=-1)"},
    {"a=4,6 b=6,4", "%y = aten::view_as(self=%a, other=%b)"},
    {"a=4,6,1", "%y = aten::expand(self=%a, size=[4, -1, 5])"},
    {"a=6", "%y = aten::expand(self=%a, size=[4, 6])"},
    {"a=4,1 b=4,6", "%y = aten::expand_as(self=%a, other=%b)"},
    {"a=4,6,2", "%y = aten::permute(self=%a, dims=[2, 0, -2])"},
    {"a=4,6", "%y = aten::transpose.int(self=%a, dim0=0, dim1=-1)"},
    {"a=4,6", "%y = aten::swapaxes(self=%a, axis0=0, axis1=1)"},
    {"a=4,6,2", "%y = aten::movedim.intlist(self=%a, source=[0, 1], destination=[2, 0])"},
    {"a=4,6", "%y = aten::t(self=%a)"},
    {"a=2,4,6", "%y = aten::mT(self=%a)"},
    {"a=4,6", "%y = aten::repeat(self=%a, repeats=[2, 1, 3])"},
    {"a=4,6", "%y = aten::repeat_interleave.self_int(self=%a, repeats=2, dim=1)"},
    {"a=4,6", "%y = aten::repeat_interleave.self_int(self=%a, repeats=3)"},
    {"a=4,6 b=4,2", "%y = aten::cat(tensors=[%a, %b], dim=-1)"},
    {"a=4,6 b=4,6", "%y = aten::stack(tensors=[%a, %b], dim=1)"},
    {"a=4,6", "%y, %z = aten::split.Tensor(self=%a, split_size=4, dim=1)"},
    {"a=4,6", "%y, %z, %w = aten::split_with_sizes(self=%a, split_sizes=[1, 3, 2], dim=1)"},
    {"a=4,6", "%y, %z = aten::chunk(self=%a, chunks=2, dim=0)"},
    {"a=2,6", "%y, %z = aten::unbind.int(self=%a, dim=0)"},
    {"a=4,6", "%y = aten::slice.Tensor(self=%a, dim=1, start=1, end=6, step=2)"},
    {"a=4,6", "%y = aten::narrow(self=%a, dim=0, start=1, length=2)"},
    {"a=4,6", "%y = aten::select.int(self=%a, dim=1, index=-2)"},
    {"a=4,6 b=4,2", "%y = aten::slice_scatter(self=%a, src=%b, dim=1, start=2, end=4)"},
    {"a=4,6 b=4", "%y = aten::select_scatter(self=%a, src=%b, dim=1, index=3)"},
    {"a=4", "%y = aten::diag(self=%a, diagonal=1)"},
    {"a=4,6", "%y = aten::diag(self=%a)"},
    {"a=4,6,2", "%y = aten::diagonal(self=%a, offset=1, dim1=0, dim2=1)"},
    {"a=4,6", "%y = aten::triu(self=%a, diagonal=1)"},
    {"a=4,6", "%y = aten::tril(self=%a)"},
    {"a=4,6", "%y = aten::flip(self=%a, dims=[0])"},
    {"a=4,6", "%y = aten::roll(self=%a, shifts=[1], dims=[1])"},
    {"a=4,6", "%y = aten::roll(self=%a, shifts=[5])"},
    {"a=4,6", "%y = aten::pad(self=%a, pad=[1, 2], mode=\"constant\", value=0.5)"},
    {"a=4,6", "%y = aten::constant_pad_nd(self=%a, pad=[-1, 2, 1, 0], value=0.0)"},
    {"a=4,6", "%y = aten::unfold(self=%a, dimension=1, size=3, step=2)"},
    // --- products
    {"a=4,2,6 w=8,6 b=8", "%y = aten::linear(input=%a, weight=%w, bias=%b)"},
    {"a=4,6 w=8,6", "%y = aten::linear(input=%a, weight=%w)"},
    {"a=4,6 w=6 b=", "%y = aten::linear(input=%a, weight=%w, bias=%b)"},
    {"a=4,6 b=6,8", "%y = aten::mm(self=%a, mat2=%b)"},
    {"a=2,4,6 b=2,6,8", "%y = aten::bmm(self=%a, mat2=%b)"},
    {"c=8 a=4,6 b=6,8", "%y = aten::addmm(self=%c, mat1=%a, mat2=%b, beta=0.5, alpha=2)"},
    {"c=4,8 a=2,4,6 b=2,6,8",
     "%y = aten::baddbmm(self=%c, batch1=%a, batch2=%b, beta=0.5, alpha=2)"},
    {"a=4,6 b=6", "%y = aten::mv(self=%a, vec=%b)"},
    {"a=6 b=6", "%y = aten::dot(self=%a, tensor=%b)"},
    {"a=4 b=6", "%y = aten::outer(self=%a, vec2=%b)"},
    {"a=6 b=6", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=4,6 b=6", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=4,6 b=6,2", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=6 b=6,2", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=2,4,6 b=6", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=2,4,6 b=6,8", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=2,1,4,6 b=2,6,2", "%y = aten::matmul(self=%a, other=%b)"},
    {"a=6 b=2,6,4", "%y = aten::matmul(self=%a, other=%b)"},
    // --- layers
    {"w=6,4 i=2,3<6", "%y = aten::embedding(weight=%w, indices=%i)"},
    {"w=6,4 i=2,3<6", "%y = aten::embedding(weight=%w, indices=%i, padding_idx=2)", false},
    {"w=6,4 i=2,3<6", "%y = aten::embedding(weight=%w, indices=%i, scale_grad_by_freq=true)",
     false},
    {"a=4,6 w=6 b=6",
     "%y = aten::layer_norm(input=%a, normalized_shape=[6], weight=%w, bias=%b, eps=0.01)"},
    {"a=4,2,3", "%y = aten::layer_norm(input=%a, normalized_shape=[2, 3])"},
    {"a=4,6 b=3,6 c=3", "%y = nnscaler::tiled_linear(input=%a, weight=%b, bias=%c)"},
    {"a=4,6 b=4,6", "%y = nnscaler::swiglu(gate=%a, up=%b)"},
    {"a=2,4,6 b=4,6 c=4,6", "%y = nnscaler::rope(self=%a, cos=%b, sin=%c)"},
    {"a=4,6 w=6", "%y = aten::rms_norm(input=%a, normalized_shape=[6], weight=%w, eps=0.01)"},
    {"a=4,6", "%y = aten::rms_norm(input=%a, normalized_shape=[6])"},
    {"a=2,4,3 w=4 b=4",
     "%y = aten::group_norm(input=%a, num_groups=2, weight=%w, bias=%b, eps=0.01)"},
    {"a=4,2,3 w=2 b=2",
     "%y = aten::batch_norm(input=%a, weight=%w, bias=%b, training=true, momentum=0.1, eps=0.01)"},
    {"a=4,6 m=6. v=6+.",
     "%y = aten::batch_norm(input=%a, running_mean=%m, running_var=%v, training=false, "
     "momentum=0.1, eps=0.01)"},
    {"a=4,6", "%y = aten::dropout(input=%a, p=0.4, train=true)"},
    {"a=4,6", "%y = aten::dropout(input=%a, p=0.4, train=false)"},
    {"q=2,2,4,3 k=2,2,4,3 v=2,2,4,3",
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, is_causal=true)"},
    {"q=2,2,4,3 k=2,2,6,3 v=2,2,6,3 m=4,6?",
     "%n = aten::logical_or(self=%m, other=%m); %t = aten::ge.Scalar(self=%n, other=0); "
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, attn_mask=%t)"},
    {"q=2,2,4,3 k=2,2,6,3 v=2,2,6,3 m=4,6",
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, attn_mask=%m)"},
    {"q=2,4,4,3 k=2,2,4,3 v=2,2,4,3",
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, scale=0.7, "
     "enable_gqa=true)"},
    {"q=2,4,3 k=2,6,3 v=2,6,2",
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, is_causal=true)"},
    {"q=2,2,4,3 k=2,2,4,3 v=2,2,4,3",
     "%y = aten::scaled_dot_product_attention(query=%q, key=%k, value=%v, dropout_p=0.3)"},
    // --- losses
    {"a=4,6 t=4<6", "%y = aten::cross_entropy_loss(self=%a, target=%t, reduction=1)"},
    {"a=4,6 t=4<6", "%y = aten::cross_entropy_loss(self=%a, target=%t, reduction=0)"},
    {"a=4,6 t=4<6 w=6+.",
     "%y = aten::cross_entropy_loss(self=%a, target=%t, weight=%w, reduction=1, ignore_index=2, "
     "label_smoothing=0.1)"},
    {"a=4,6 t=4<6",
     "%y = aten::cross_entropy_loss(self=%a, target=%t, reduction=2, label_smoothing=0.2)"},
    {"a=4,6 t=4,6+ w=6+.",
     "%y = aten::cross_entropy_loss(self=%a, target=%t, weight=%w, reduction=1, "
     "label_smoothing=0.1)"},
    {"a=4,6 t=4,6+", "%y = aten::cross_entropy_loss(self=%a, target=%t, reduction=0)"},
    {"a=6 t=<6", "%y = aten::cross_entropy_loss(self=%a, target=%t)"},
    {"a=2,6,4 t=2,4<6", "%y = aten::cross_entropy_loss(self=%a, target=%t, reduction=0)"},
    {"a=2,3,2,4 t=2,2,4<3", "%y = aten::nll_loss_nd(self=%a, target=%t, reduction=1)"},
    {"a=4,6 t=4<6 w=6+.", "%y = aten::nll_loss(self=%a, target=%t, weight=%w, reduction=2)"},
    {"a=4,6 t=4,6", "%y = aten::mse_loss(self=%a, target=%t, reduction=1)"},
    {"a=4,6 t=4,6", "%y = aten::mse_loss(self=%a, target=%t, reduction=0)"},
    {"a=4,6 t=4,6", "%y = aten::l1_loss(self=%a, target=%t, reduction=2)"},
    {"a=4,6 t=4,6", "%y = aten::smooth_l1_loss(self=%a, target=%t, reduction=1, beta=0.6)"},
    {"a=4,6 t=4,6", "%y = aten::smooth_l1_loss(self=%a, target=%t, reduction=1, beta=0.0)"},
    {"a=4,6 t=4,6", "%y = aten::huber_loss(self=%a, target=%t, reduction=1, delta=0.7)"},
    {"a=4,6 t=4,6+", "%y = aten::kl_div(self=%a, target=%t, reduction=1)"},
    {"a=4,6 t=4,6", "%y = aten::kl_div(self=%a, target=%t, reduction=2, log_target=true)"},
    {"a=4,6 t=4,6+",
     "%p = aten::sigmoid(self=%a); %y = aten::binary_cross_entropy(self=%p, target=%t, "
     "reduction=1)"},
    {"a=4,6 t=4,6 w=6+.",
     "%p = aten::sigmoid(self=%a); %y = aten::binary_cross_entropy(self=%p, target=%t, weight=%w, "
     "reduction=2)"},
    {"a=4,6 t=4,6", "%y = aten::binary_cross_entropy_with_logits(self=%a, target=%t, reduction=1)"},
    {"a=4,6 t=4,6 w=6+. p=6+.",
     "%y = aten::binary_cross_entropy_with_logits(self=%a, target=%t, weight=%w, pos_weight=%p, "
     "reduction=0)"},
    // --- indexing
    {"a=4,6 i=3<4", "%y = aten::index.Tensor(self=%a, indices=[%i])"},
    {"a=4,6,2 i=3<6", "%y = aten::index.Tensor(self=%a, indices=[nil, %i])"},
    {"a=4,2,6 i=3<4 j=2,1<6", "%y = aten::index.Tensor(self=%a, indices=[%i, nil, %j])"},
    {"a=4,6 v=3,6 i=3<4",
     "%y = aten::index_put(self=%a, indices=[%i], values=%v, accumulate=true)"},
    {"a=4,6 v=3,6",
     "constant %i \"\": int64[3] values=2 0 3; "
     "%y = aten::index_put(self=%a, indices=[%i], values=%v, accumulate=false)"},
    {"a=4,6 i=3<6", "%y = aten::index_select(self=%a, dim=1, index=%i)"},
    {"a=4,6 s=4,3 i=3<6", "%y = aten::index_add(self=%a, dim=1, index=%i, source=%s, alpha=2)"},
    {"a=4,6 i=2<6", "%y = aten::index_fill.int_Scalar(self=%a, dim=1, index=%i, value=0.5)"},
    {"a=4,6 i=2<6 v=", "%y = aten::index_fill.int_Tensor(self=%a, dim=1, index=%i, value=%v)"},
    {"a=4,6 i=4,3<6", "%y = aten::gather(self=%a, dim=1, index=%i)"},
    {"a=4,6 i=4,3<6", "%y = aten::scatter.value(self=%a, dim=1, index=%i, value=0.5)"},
    {"a=3,6 s=3,4",
     "constant %i \"\": int64[2, 3] values=2 0 5 1 3 4; "
     "%y = aten::scatter.src(self=%a, dim=1, index=%i, src=%s)"},
    {"a=4,6 s=4,4 i=3,2<6", "%y = aten::scatter_add(self=%a, dim=1, index=%i, src=%s)"},
    {"a=4,6 i=5<24", "%y = aten::take_along_dim(self=%a, indices=%i)"},
    {"a=1,6 i=4,2<6", "%y = aten::take_along_dim(self=%a, indices=%i, dim=1)"},
    // --- convolutions and pooling
    {"x=2,3,6 w=4,3,3 b=4",
     "%y = aten::conv1d(input=%x, weight=%w, bias=%b, stride=[2], padding=[1], dilation=[1], "
     "groups=1)"},
    {"x=2,4,5,4 w=6,2,2,3",
     "%y = aten::conv2d(input=%x, weight=%w, stride=[1, 2], padding=[1, 1], dilation=[2, 1], "
     "groups=2)"},
    {"x=2,2,3,3 w=2,2,2,2 b=2",
     "%y = aten::conv2d.padding(input=%x, weight=%w, bias=%b, "
     "stride=[1], padding=\"same\", dilation=[1], groups=1)"},
    {"x=4,4,4 w=2,2,3,3", "%y = aten::conv2d(input=%x, weight=%w, groups=2)"},
    {"x=1,2,2,3,3 w=2,2,2,2,2", "%y = aten::conv3d(input=%x, weight=%w, padding=[1, 0, 0])"},
    {"x=2,4,3,2 w=4,2,2,3 b=2",
     "%y = aten::conv_transpose2d.input(input=%x, weight=%w, bias=%b, stride=[2, 1], "
     "padding=[1, 0], output_padding=[1, 0])"},
    {"x=2,3,6,4", "%y = aten::max_pool2d(self=%x, kernel_size=[2], stride=[2])"},
    {"x=2,3,5,4",
     "%y = aten::max_pool2d(self=%x, kernel_size=[3, 2], stride=[2, 1], padding=[1, 0], "
     "ceil_mode=true)"},
    {"x=2,2,5,4",
     "%y = aten::avg_pool2d(self=%x, kernel_size=[2, 3], stride=[1], padding=[1], "
     "count_include_pad=false)"},
    {"x=2,2,5,4", "%y = aten::avg_pool2d(self=%x, kernel_size=[2], divisor_override=3)"},
    {"x=2,2,5,4", "%y = aten::adaptive_avg_pool2d(self=%x, output_size=[2, 3])"},
    {"x=2,2,5,4", "%y = aten::adaptive_avg_pool2d(self=%x, output_size=[1, 1])"},
};

struct Leaf {
  std::string name;
  TensorType type{{}, DType::f64};
  bool parameter = true;
  double low = -1, high = 1;
  int64_t below = 0;
};

std::vector<Leaf> leaves_of(const OperatorCase& c) {
  std::vector<Leaf> out;
  std::istringstream words(c.leaves);
  for (std::string word; words >> word;) {
    Leaf leaf;
    const size_t equals = word.find('=');
    leaf.name = word.substr(0, equals);
    for (size_t i = equals + 1; i < word.size(); ++i) {
      const char mark = word[i];
      if (mark == ',') continue;
      if (isdigit(mark) != 0) {
        size_t length = 0;
        leaf.type.shape.push_back(std::stoll(word.substr(i), &length));
        i += length - 1;
      } else if (mark == '<') {
        leaf.type.dtype = DType::i64;
        leaf.below = std::stoll(word.substr(i + 1));
        leaf.parameter = false;
        break;
      } else if (mark == '?') {
        leaf.type.dtype = DType::boolean;
        leaf.parameter = false;
      } else if (mark == '.') {
        leaf.parameter = false;
      } else if (mark == 'f') {
        leaf.type.dtype = DType::f32;
      } else {
        leaf.low = mark == '+' ? 0.5 : mark == '^' ? 1.5 : -0.9;
        leaf.high = mark == '+' ? 1.5 : mark == '^' ? 2.5 : 0.9;
      }
    }
    out.push_back(std::move(leaf));
  }
  return out;
}

}  // namespace

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> all = [] {
    std::vector<OperatorCase> out = functions_of_one();
    out.insert(out.end(), std::begin(kCases), std::end(kCases));
    return out;
  }();
  return all;
}

graph::Graph calls_of(const OperatorCase& c) {
  std::string text = "graph \"Case\" training\n";
  for (const Leaf& leaf : leaves_of(c))
    text += fmt::format("{} %{} \"{}\": {}{}\n", leaf.parameter ? "parameter" : "input", leaf.name,
                        leaf.name, to_string(leaf.type), leaf.parameter ? " grad" : "");
  std::string lines = c.lines;
  for (char& ch : lines)
    if (ch == ';') ch = '\n';
  return read_graph(text + lines);
}

std::shared_ptr<const graph::Graph> graph_of(const OperatorCase& c) {
  graph::Graph g = calls_of(c);
  using graph::ValueRef;
  int loss = -1;
  const std::vector<int> results = g.nodes.back().outputs;
  for (int id : results) {
    const graph::Value y = g.value({id});
    if (!is_floating(y.type.dtype)) continue;
    graph::Value k;
    k.id = static_cast<int>(g.values.size());
    k.type = {y.type.shape, DType::f64};
    k.role = graph::Role::input;
    k.name = fmt::format("k{}", id);
    g.inputs.push_back(k.id);
    g.values.push_back(k);
    const int product =
        add_call(g, "aten::mul.Tensor", {{"self", ValueRef{id}}, {"other", ValueRef{k.id}}})[0];
    const int sum = add_call(g, "aten::sum", {{"self", ValueRef{product}}})[0];
    loss =
        loss < 0
            ? sum
            : add_call(
                  g, "aten::add.Tensor",
                  {{"self", ValueRef{loss}}, {"other", ValueRef{sum}}, {"alpha", int64_t{1}}})[0];
  }
  if (loss < 0) throw std::runtime_error("no differentiable result: " + c.title());
  g.outputs = {{ValueRef{loss}}};
  graph::verify(g);
  return std::make_shared<const graph::Graph>(std::move(g));
}

Inputs inputs_of(const OperatorCase& c, const graph::Graph& graph, size_t micro_batches,
                 uint64_t seed) {
  Inputs inputs = random_inputs(graph, micro_batches, seed);
  for (const Leaf& leaf : leaves_of(c)) {
    const auto place = [&](Array& a) {
      for (double& x : a.memory->data) {
        if (is_floating(leaf.type.dtype)) x = leaf.low + (x + 1) / 2 * (leaf.high - leaf.low);
        // random_inputs drew integers below 3; a hash of place and number spreads them.
        if (leaf.below > 0)
          x = static_cast<double>(
              hash_bytes(fmt::format("{} {} {}", seed, &x - a.memory->data.data(), leaf.name)) %
              static_cast<uint64_t>(leaf.below));
      }
    };
    if (leaf.parameter) place(inputs.weights.at(leaf.name));
    if (!leaf.parameter)
      for (Tensors& sample : inputs.samples) place(sample.at(leaf.name));
  }
  return inputs;
}

}  // namespace nns::test
