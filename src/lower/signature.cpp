// The table of signatures.
#include "lower/signature.h"

#include <algorithm>

#include "base/error.h"

namespace nns::lower {
namespace {

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    result.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

const Signature* find(std::string_view op) {
  const auto& all = signatures();
  const auto it =
      std::lower_bound(all.begin(), all.end(), op,
                       [](const Signature& s, std::string_view name) { return s.op < name; });
  return it != all.end() && it->op == op ? &*it : nullptr;
}

const Arg* argument(const std::vector<NamedArg>& args, std::string_view name) {
  for (const NamedArg& a : args)
    if (a.name == name) return &a.value;
  return nullptr;
}

}  // namespace

const std::vector<Signature>& signatures() {
  static const std::vector<Signature> table = {
      {"aten::_adaptive_avg_pool2d", "self output_size"},
      {"aten::_adaptive_avg_pool2d_backward", "grad_output self", "self"},
      {"aten::_log_softmax_backward_data", "grad_output output dim input_dtype", "output"},
      {"aten::_native_batch_norm_legit_functional",
       "input weight bias running_mean running_var training momentum eps"},
      {"aten::_safe_softmax", "self dim dtype"},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       "query key value dropout_p is_causal attn_mask scale"},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
       "query key value"},
      {"aten::_softmax_backward_data", "grad_output output dim input_dtype", "output"},
      {"aten::abs", "self"},
      {"aten::add.Scalar", "self other alpha"},
      {"aten::add.Tensor", "self other alpha"},
      {"aten::avg_pool2d_backward",
       "grad_output self kernel_size stride padding ceil_mode count_include_pad divisor_override",
       "self"},
      {"aten::binary_cross_entropy_backward", "grad_output self target weight reduction", "self"},
      {"aten::bmm", "self mat2"},
      {"aten::cat", "tensors dim"},
      {"aten::clamp", "self min max"},
      {"aten::conj_physical", "self"},
      {"aten::constant_pad_nd", "self pad value"},
      {"aten::contiguous", "self"},
      {"aten::convolution",
       "input weight bias stride padding dilation transposed output_padding groups"},
      {"aten::convolution_backward",
       "grad_output input weight bias_sizes stride padding dilation transposed output_padding "
       "groups output_mask",
       "input weight weight@bias_sizes"},
      {"aten::cos", "self"},
      {"aten::cosh", "self"},
      {"aten::cumsum", "self dim dtype"},
      {"aten::diagonal", "self offset dim1 dim2"},
      {"aten::diagonal_backward", "grad_output input_sizes offset dim1 dim2",
       "grad_output@input_sizes"},
      {"aten::div.Scalar", "self other"},
      {"aten::div.Tensor", "self other"},
      {"aten::div.Tensor_mode", "self other rounding_mode"},
      {"aten::dot", "self tensor"},
      {"aten::elu_backward", "grad_output alpha scale input_scale is_result self_or_result",
       "self_or_result"},
      {"aten::embedding_dense_backward",
       "grad_output indices num_weights padding_idx scale_grad_by_freq"},
      {"aten::eq.Scalar", "self other"},
      {"aten::eq.Tensor", "self other"},
      {"aten::exp", "self"},
      {"aten::expand", "self size implicit"},
      {"aten::flip", "self dims"},
      {"aten::gather", "self dim index sparse_grad"},
      {"aten::ge.Scalar", "self other"},
      {"aten::ge.Tensor", "self other"},
      {"aten::gelu_backward", "grad_output self approximate", "self"},
      {"aten::glu_backward", "grad_output self dim", "self"},
      {"aten::gt.Scalar", "self other"},
      {"aten::gt.Tensor", "self other"},
      {"aten::hardsigmoid_backward", "grad_output self", "self"},
      {"aten::hardswish_backward", "grad_output self", "self"},
      {"aten::hardtanh_backward", "grad_output self min_val max_val", "self"},
      {"aten::imag", "self"},
      {"aten::index.Tensor", "self indices"},
      {"aten::index_add", "self dim index source alpha"},
      {"aten::index_fill.int_Scalar", "self dim index value"},
      {"aten::index_put", "self indices values accumulate"},
      {"aten::index_select", "self dim index"},
      {"aten::isfinite", "self"},
      {"aten::le.Scalar", "self other"},
      {"aten::le.Tensor", "self other"},
      {"aten::leaky_relu_backward", "grad_output self negative_slope self_is_result", "self"},
      {"aten::log", "self"},
      {"aten::log_sigmoid", "self"},
      {"aten::log_softmax.int", "self dim dtype"},
      {"aten::logical_and", "self other"},
      {"aten::logical_not", "self"},
      {"aten::logical_or", "self other"},
      {"aten::logical_xor", "self other"},
      {"aten::lt.Scalar", "self other"},
      {"aten::lt.Tensor", "self other"},
      {"aten::masked_fill.Scalar", "self mask value"},
      {"aten::matmul", "self other"},
      {"aten::max_pool2d_with_indices", "self kernel_size stride padding dilation ceil_mode"},
      {"aten::max_pool2d_with_indices_backward",
       "grad_output self kernel_size stride padding dilation ceil_mode indices", "self"},
      {"aten::mean.dim", "self dim keepdim dtype"},
      {"aten::mish_backward", "grad_output self", "self"},
      {"aten::mm", "self mat2"},
      {"aten::movedim.intlist", "self source destination"},
      {"aten::mul.Scalar", "self other"},
      {"aten::mul.Tensor", "self other"},
      {"aten::mv", "self vec"},
      {"aten::narrow", "self dim start length"},
      {"aten::native_batch_norm",
       "input weight bias running_mean running_var training momentum eps"},
      {"aten::native_batch_norm_backward",
       "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask",
       "input weight weight"},
      {"aten::native_group_norm", "input weight bias N C HxW group eps"},
      {"aten::native_group_norm_backward",
       "grad_out input mean rstd weight N C HxW group output_mask", "input weight weight"},
      {"aten::native_layer_norm", "input normalized_shape weight bias eps"},
      {"aten::native_layer_norm_backward",
       "grad_out input normalized_shape mean rstd weight bias output_mask", "input weight bias"},
      {"aten::neg", "self"},
      {"aten::new_full", "self size fill_value dtype"},
      {"aten::new_zeros", "self size dtype"},
      {"aten::nll_loss2d_backward",
       "grad_output self target weight reduction ignore_index total_weight", "self"},
      {"aten::nll_loss2d_forward", "self target weight reduction ignore_index"},
      {"aten::nll_loss_backward",
       "grad_output self target weight reduction ignore_index total_weight", "self"},
      {"aten::nll_loss_forward", "self target weight reduction ignore_index"},
      {"aten::nll_loss_nd", "self target weight reduction ignore_index"},
      {"aten::ones_like", "self dtype"},
      {"aten::outer", "self vec2"},
      {"aten::permute", "self dims"},
      {"aten::polar", "abs angle"},
      {"aten::pow.Tensor_Scalar", "self exponent"},
      {"aten::pow.Tensor_Tensor", "self exponent"},
      {"aten::real", "self"},
      {"aten::repeat_interleave.self_int", "self repeats dim output_size"},
      {"aten::reshape", "self shape"},
      {"aten::roll", "self shifts dims"},
      {"aten::rsqrt", "self"},
      {"aten::rsub.Scalar", "self other alpha"},
      {"aten::scatter.src", "self dim index src"},
      {"aten::scatter.value", "self dim index value"},
      {"aten::scatter_add", "self dim index src"},
      {"aten::select.int", "self dim index"},
      {"aten::select_backward", "grad_output input_sizes dim index", "grad_output@input_sizes"},
      {"aten::select_scatter", "self src dim index"},
      {"aten::sgn", "self"},
      {"aten::sigmoid", "self"},
      {"aten::sigmoid_backward", "grad_output output", "output"},
      {"aten::sign", "self"},
      {"aten::silu_backward", "grad_output self", "self"},
      {"aten::sin", "self"},
      {"aten::sinh", "self"},
      {"aten::slice.Tensor", "self dim start end step"},
      {"aten::slice_backward", "grad_output input_sizes dim start end step",
       "grad_output@input_sizes"},
      {"aten::slice_scatter", "self src dim start end step"},
      {"aten::softmax.int", "self dim dtype"},
      {"aten::softplus_backward", "grad_output self beta threshold", "self"},
      {"aten::stack", "tensors dim"},
      {"aten::sub.Tensor", "self other alpha"},
      {"aten::sum", "self dtype"},
      {"aten::sum.dim_IntList", "self dim keepdim dtype"},
      {"aten::t", "self"},
      {"aten::tanh_backward", "grad_output output", "output"},
      {"aten::threshold_backward", "grad_output self threshold", "self"},
      {"aten::to.dtype", "self dtype"},
      {"aten::transpose.int", "self dim0 dim1"},
      {"aten::tril", "self diagonal"},
      {"aten::triu", "self diagonal"},
      {"aten::unfold_backward", "grad_in input_sizes dim size step", "grad_in@input_sizes"},
      {"aten::unsqueeze", "self dim"},
      {"aten::view_as_complex", "self"},
      {"aten::view_as_real", "self"},
      {"aten::where.ScalarOther", "condition self other"},
      {"aten::where.self", "condition self other"},
      {"aten::zeros_like", "self dtype"},
      {"nnscaler::attention", "query key value is_causal scale"},
      {"nnscaler::attention_backward", "grad_out query key value out logsumexp is_causal scale"},
      {"nnscaler::bernoulli", "p key seed step micro offset full"},
      {"nnscaler::dropout", "input p key seed step micro offset full"},
      {"nnscaler::gelu", "self approximate"},
      {"nnscaler::gelu_backward", "grad_output self approximate"},
      {"nnscaler::join", "tensors dim"},
      {"nnscaler::linear_input", "grad_output weight"},
      {"nnscaler::linear_weight", "grad_output input"},
      {"nnscaler::normal_like", "like dtype key seed step micro offset full"},
      {"nnscaler::rms_norm", "input normalized_shape weight eps"},
      {"nnscaler::rms_norm_backward", "grad_output input normalized_shape rstd weight output_mask"},
      {"nnscaler::uniform_like", "like dtype key seed step micro offset full"},
  };
  return table;
}

std::vector<std::string_view> argument_names(std::string_view op) {
  const Signature* signature = find(op);
  NNS_CHECK(signature != nullptr, "no signature of {}", op);
  return words(signature->names);
}

std::optional<std::vector<TensorType>> derivative_types(std::string_view op,
                                                        const std::vector<NamedArg>& args,
                                                        const Program& program) {
  const Signature* signature = find(op);
  if (signature == nullptr || signature->outputs.empty()) return std::nullopt;
  std::vector<TensorType> types;
  for (std::string_view word : words(signature->outputs)) {
    const size_t at = word.find('@');
    const Arg* like = argument(args, word.substr(0, at));
    const auto* ref = like != nullptr ? std::get_if<ValueRef>(like) : nullptr;
    // Of an argument that is nil there is no gradient: output_mask has it off.
    TensorType type = ref != nullptr && ref->id >= 0 ? program.slot(ref->id).type : TensorType{};
    if (at != std::string_view::npos)
      if (const Arg* sizes = argument(args, word.substr(at + 1)))
        if (const auto* shape = std::get_if<Shape>(sizes)) type.shape = *shape;
    types.push_back(std::move(type));
  }
  return types;
}

}  // namespace nns::lower
