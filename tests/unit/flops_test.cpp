// Floating point operations of every operator that says how many it takes, against a count by hand.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <sstream>

#include "operators/record.h"
#include "support/operator_cases.h"

using namespace nns;
using namespace nns::test;

namespace {

// Of the last call of a case.
double flops_of(const OperatorCase& c) {
  const graph::Graph g = calls_of(c);
  return operators::flops(operators::CallView(g, g.nodes.back()));
}

// Operators whose count is their own, not one an element of the result.
std::set<std::string> counted() {
  std::set<std::string> out;
  for (const operators::Record* row : operators::all_records())
    if (row->flops != nullptr) out.emplace(row->name);
  return out;
}

struct Count {
  const char *ops, *leaves, *arguments;
  double flops;
};

// `ops` are those that take the arguments and the same count.
const Count kCounts[] = {
    // A product of m×k and k×n: m n k multiplications and as many additions.
    {"aten::linear nnscaler::tiled_linear", "input=4,2,6 weight=8,6 bias=8",
     "input=%input, weight=%weight, bias=%bias", 2 * (4 * 2) * 6 * 8},
    {"aten::linear", "input=4,6 weight=6", "input=%input, weight=%weight", 2 * 4 * 6},
    {"nnscaler::linear_input nnscaler::tiled_linear_input", "g=4,2,8 w=8,6",
     "grad_output=%g, weight=%w", 2 * (4 * 2) * 8 * 6},
    {"nnscaler::linear_weight nnscaler::tiled_linear_weight", "g=4,2,8 x=4,2,6",
     "grad_output=%g, input=%x", 2 * (4 * 2) * 8 * 6},
    {"aten::matmul", "a=2,4,6 b=6,8", "self=%a, other=%b", 2 * (2 * 4) * 6 * 8},
    {"aten::matmul", "a=3,1,4,6 b=2,6,8", "self=%a, other=%b", 2 * (3 * 2 * 4) * 6 * 8},
    {"aten::mm", "a=4,6 b=6,8", "self=%a, mat2=%b", 2 * 4 * 6 * 8},
    {"aten::bmm", "a=2,4,6 b=2,6,8", "self=%a, mat2=%b", 2 * 2 * 4 * 6 * 8},
    {"aten::mv", "a=4,6 b=6", "self=%a, vec=%b", 2 * 4 * 6},
    {"aten::dot", "a=6 b=6", "self=%a, tensor=%b", 2 * 6},
    {"aten::vdot", "a=6 b=6", "self=%a, other=%b", 2 * 6},
    {"aten::addmm", "c=8 a=4,6 b=6,8", "self=%c, mat1=%a, mat2=%b", 2 * 4 * 6 * 8},
    {"aten::baddbmm", "c=8 a=2,4,6 b=2,6,8", "self=%c, batch1=%a, batch2=%b", 2 * 2 * 4 * 6 * 8},
    {"aten::einsum", "a=2,4,6 b=2,6,3", "equation=\"bik,bkj->bij\", tensors=[%a, %b]",
     2 * 2 * 4 * 6 * 3},
    // Queries times keys, then weights times values: two products of 4×3×6 for each of 2·2 heads.
    {"aten::scaled_dot_product_attention nnscaler::attention "
     "aten::_scaled_dot_product_flash_attention_for_cpu nnscaler::attention_dropout "
     "nnscaler::dropped_attention",
     "q=2,2,4,3 k=2,2,6,3 v=2,2,6,3", "query=%q, key=%k, value=%v", 2 * (2 * 2) * 2 * (4 * 3 * 6)},
    {"nnscaler::attention", "q=2,2,4,3 k=2,2,6,3 v=2,2,6,5", "query=%q, key=%k, value=%v",
     (2 * 2) * 2 * (4 * 3 * 6 + 4 * 6 * 5)},
    // Of its derivative: the weights anew, and gradients of weights, queries, keys and values.
    {"nnscaler::attention_backward aten::_scaled_dot_product_flash_attention_for_cpu_backward "
     "nnscaler::attention_dropout_backward nnscaler::dropped_attention_backward",
     "g=2,2,4,3 q=2,2,4,3 k=2,2,6,3 v=2,2,6,3 o=2,2,4,3 l=2,2,4",
     "grad_out=%g, query=%q, key=%k, value=%v, out=%o, logsumexp=%l",
     5 * (2 * 2) * 2 * (4 * 3 * 6)},
    // Convolutions: each output element takes a window of channels/groups × kernel.
    {"aten::conv1d", "x=2,3,6 w=4,3,3", "input=%x, weight=%w, stride=[2], padding=[1]",
     2 * (2 * 4 * 3) * (3 * 3)},
    {"aten::conv2d", "x=2,4,5,4 w=6,2,2,3",
     "input=%x, weight=%w, stride=[1, 2], padding=[1, 1], dilation=[2, 1], groups=2",
     2 * (2 * 6 * 5 * 2) * (2 * 2 * 3)},
    {"aten::conv3d", "x=1,2,2,3,3 w=2,2,2,2,2", "input=%x, weight=%w",
     2 * (1 * 2 * 1 * 2 * 2) * (2 * 2 * 2 * 2)},
    {"aten::convolution", "x=2,3,6 w=4,3,3",
     "input=%x, weight=%w, stride=[2], padding=[1], dilation=[1], transposed=false, "
     "output_padding=[0], groups=1",
     2 * (2 * 4 * 3) * (3 * 3)},
    // Transposed ones: each input element adds to a window.
    {"aten::conv_transpose1d", "x=2,4,3 w=4,2,3", "input=%x, weight=%w", 2 * (2 * 4 * 3) * (2 * 3)},
    {"aten::conv_transpose2d", "x=2,4,3,2 w=4,2,2,3", "input=%x, weight=%w, stride=[2, 1]",
     2 * (2 * 4 * 3 * 2) * (2 * 2 * 3)},
    {"aten::conv_transpose3d", "x=1,2,2,2,2 w=2,3,2,2,2", "input=%x, weight=%w",
     2 * (1 * 2 * 2 * 2 * 2) * (3 * 2 * 2 * 2)},
    // Gradients of input and weight: a convolution each.
    {"aten::convolution_backward", "g=2,4,3 x=2,3,6 w=4,3,3",
     "grad_output=%g, input=%x, weight=%w, stride=[2], padding=[1], dilation=[1], "
     "transposed=false, output_padding=[0], groups=1, output_mask=[true, true, false]",
     2 * 2 * (2 * 4 * 3) * (3 * 3)},
    // Pooling: a window for each output element.
    {"aten::max_pool2d aten::avg_pool2d aten::max_pool2d_with_indices", "x=2,3,6,4",
     "self=%x, kernel_size=[2, 3], stride=[2, 1]", (2 * 3 * 3 * 2) * (2 * 3)},
    {"aten::max_pool3d aten::avg_pool3d aten::max_pool3d_with_indices", "x=1,2,4,3,4",
     "self=%x, kernel_size=[2, 3, 2]", (2 * 2 * 1 * 2) * (2 * 3 * 2)},
    // Every weight, for each step of each sequence.
    {"aten::rnn_tanh.input aten::rnn_relu.input", "x=5,4,3 h=1,4,2 w=2,3 v=2,2",
     "input=%x, hx=%h, params=[%w, %v], has_biases=false, num_layers=1, dropout=0.0, train=true, "
     "bidirectional=false, batch_first=false",
     2 * (5 * 4) * (2 * 3 + 2 * 2)},
    {"aten::gru.input", "x=5,4,3 h=1,4,2 w=6,3 v=6,2",
     "input=%x, hx=%h, params=[%w, %v], has_biases=false, num_layers=1, dropout=0.0, train=true, "
     "bidirectional=false, batch_first=false",
     2 * (5 * 4) * (6 * 3 + 6 * 2)},
    {"aten::lstm.input", "x=5,4,3 h=1,4,2 c=1,4,2 w=8,3 v=8,2 b=8",
     "input=%x, hx=[%h, %c], params=[%w, %v, %b, %b], has_biases=true, num_layers=1, dropout=0.0, "
     "train=true, bidirectional=false, batch_first=false",
     2 * (5 * 4) * (8 * 3 + 8 * 2)},
    {"aten::max_pool1d aten::avg_pool1d", "x=2,3,6", "self=%x, kernel_size=[3]", (2 * 3 * 2) * 3},
    // About ten an element: exponential, sums and a division.
    {"aten::softmax aten::log_softmax aten::_softmax aten::_log_softmax aten::_safe_softmax",
     "a=4,6", "self=%a, dim=1", 10 * 4 * 6},
    {"aten::logsumexp", "a=4,6", "self=%a, dim=[1]", 10 * 4 * 6},
    {"aten::_softmax_backward_data aten::_log_softmax_backward_data", "g=4,6 a=4,6",
     "grad_output=%g, output=%a, dim=1, input_dtype=float64", 10 * 4 * 6},
    // About eight an element of the input: two sums, a centred and a scaled value.
    {"aten::layer_norm aten::rms_norm aten::native_layer_norm aten::_fused_rms_norm "
     "nnscaler::rms_norm nnscaler::layer_norm",
     "a=4,6 w=6", "input=%a, normalized_shape=[6], weight=%w, eps=0.1", 8 * 4 * 6},
    {"aten::native_layer_norm_backward", "g=4,6 a=4,6 m=4,1 r=4,1 w=6 b=6",
     "grad_out=%g, input=%a, normalized_shape=[6], mean=%m, rstd=%r, weight=%w, bias=%b, "
     "output_mask=[true, true, true]",
     8 * 4 * 6},
    {"nnscaler::add_rms_norm nnscaler::add_layer_norm", "a=4,6 b=4,6 w=6",
     "input=%a, addend=%b, normalized_shape=[6], weight=%w, eps=0.1", 8 * 4 * 6},
    {"nnscaler::layer_norm_backward", "g=4,6 a=4,6 m=4,1 r=4,1 w=6 b=6",
     "grad_output=%g, input=%a, normalized_shape=[6], mean=%m, rstd=%r, weight=%w, bias=%b, "
     "output_mask=[true, true, true]",
     8 * 4 * 6},
    {"nnscaler::rms_norm_backward", "g=4,6 a=4,6 r=4,1 w=6",
     "grad_output=%g, input=%a, normalized_shape=[6], rstd=%r, weight=%w, output_mask=[true, true]",
     8 * 4 * 6},
    {"aten::batch_norm aten::instance_norm aten::native_batch_norm "
     "aten::_native_batch_norm_legit aten::_native_batch_norm_legit.no_stats "
     "aten::_native_batch_norm_legit_functional",
     "a=4,2,3 m=2 v=2",
     "input=%a, running_mean=%m, running_var=%v, training=true, use_input_stats=true, "
     "momentum=0.1, eps=0.1",
     8 * 4 * 2 * 3},
    {"aten::native_batch_norm_backward", "g=4,2,3 a=4,2,3",
     "grad_out=%g, input=%a, train=true, eps=0.1, output_mask=[true, false, false]", 8 * 4 * 2 * 3},
    {"aten::group_norm", "a=4,2,3", "input=%a, num_groups=2, eps=0.1", 8 * 4 * 2 * 3},
    {"aten::native_group_norm", "a=4,2,3", "input=%a, N=4, C=2, HxW=3, group=2, eps=0.1",
     8 * 4 * 2 * 3},
    {"aten::native_group_norm_backward", "g=4,2,3 a=4,2,3",
     "grad_out=%g, input=%a, N=4, C=2, HxW=3, group=2, output_mask=[true, false, false]",
     8 * 4 * 2 * 3},
    // About eight a transcendental function.
    {"aten::exp aten::exp2 aten::expm1 aten::log aten::log2 aten::log10 aten::log1p aten::sqrt "
     "aten::rsqrt aten::sin aten::cos aten::tan aten::asin aten::acos aten::atan aten::sinh "
     "aten::cosh aten::tanh aten::sigmoid aten::erf aten::erfc aten::reciprocal aten::logit "
     "aten::asinh aten::acosh aten::atanh aten::digamma aten::lgamma aten::gelu aten::silu "
     "aten::mish aten::elu aten::selu aten::celu aten::leaky_relu aten::softplus "
     "aten::softshrink aten::hardshrink aten::hardswish aten::hardsigmoid aten::log_sigmoid "
     "nnscaler::gelu aten::glu",
     "a=4,6", "self=%a", 8 * 4 * 6},
    {"nnscaler::swiglu", "a=4,6 b=4,6", "gate=%a, up=%b", 9 * 4 * 6},
    {"nnscaler::swiglu_backward", "g=4,6 a=4,6 b=4,6", "grad_output=%g, gate=%a, up=%b", 9 * 4 * 6},
    {"nnscaler::rope", "a=2,4,6 c=4,6 s=4,6", "self=%a, cos=%c, sin=%s", 3 * 2 * 4 * 6},
    {"nnscaler::rope_backward", "a=2,4,6 c=4,6 s=4,6", "grad_output=%a, cos=%c, sin=%s",
     3 * 2 * 4 * 6},
    {"aten::atan2 aten::logaddexp", "a=4,6 b=6", "self=%a, other=%b", 8 * 4 * 6},
    {"aten::threshold_backward aten::gelu_backward aten::silu_backward aten::elu_backward "
     "aten::leaky_relu_backward aten::softplus_backward aten::hardtanh_backward "
     "aten::hardswish_backward aten::hardsigmoid_backward aten::logit_backward "
     "aten::mish_backward nnscaler::gelu_backward",
     "g=4,6 a=4,6", "grad_output=%g, self=%a", 8 * 4 * 6},
    {"aten::sigmoid_backward aten::tanh_backward", "g=4,6 a=4,6", "grad_output=%g, output=%a",
     8 * 4 * 6},
    // About ten an element of a loss.
    {"aten::cross_entropy_loss aten::nll_loss aten::nll_loss_nd aten::nll_loss_forward "
     "nnscaler::cross_entropy",
     "a=4,6 t=4<6", "self=%a, target=%t, reduction=1", 10 * 4 * 6},
    {"aten::nll_loss2d aten::nll_loss2d_forward", "a=2,3,2,4 t=2,2,4<3",
     "self=%a, target=%t, reduction=1", 10 * 2 * 3 * 2 * 4},
    {"aten::nll_loss_backward nnscaler::cross_entropy_backward", "g= a=4,6 t=4<6 w=",
     "grad_output=%g, self=%a, target=%t, reduction=1, total_weight=%w", 10 * 4 * 6},
    {"aten::nll_loss2d_backward", "g= a=2,3,2,4 t=2,2,4<3 w=",
     "grad_output=%g, self=%a, target=%t, reduction=1, total_weight=%w", 10 * 2 * 3 * 2 * 4},
    // Scores of 2·3 rows of 4 in 5 classes; with gradients two products more.
    {"nnscaler::linear_cross_entropy nnscaler::linear_scores", "a=2,3,4 w=5,4 t=2,3<5",
     "self=%a, weight=%w, target=%t", 2 * (2 * 3) * 4 * 5},
    {"nnscaler::linear_cross_entropy_gradients", "a=2,3,4 w=5,4 t=2,3<5",
     "self=%a, weight=%w, target=%t, ignore_index=3, chunk=2, output_mask=[true, true, false]",
     3 * 2 * (2 * 3) * 4 * 5},
    {"nnscaler::linear_scores_backward", "g=2,3 h=2,3 a=2,3,4 w=5,4 t=2,3<5 l=2,3",
     "grad_own=%g, grad_sum=%h, self=%a, weight=%w, target=%t, logsumexp=%l, chunk=2, "
     "output_mask=[true, true]",
     3 * 2 * (2 * 3) * 4 * 5},
    // Three products of 2·3 tokens, each with 2 experts of 5×4.
    {"nnscaler::experts", "a=2,3,4 i=2,3,2<6 p=2,3,2 u=6,5,4 d=6,4,5 g=6,5,4",
     "self=%a, index=%i, weight=%p, up=%u, down=%d, gate=%g", 3 * 2 * (2 * 3 * 2) * 5 * 4},
    {"nnscaler::grouped_linear", "a=7,4 w=3,5,4 n=3<3", "self=%a, weight=%w, counts=%n",
     2 * 7 * 4 * 5},
    {"nnscaler::grouped_linear_backward", "g=7,5 a=7,4 w=3,5,4 n=3<3",
     "grad_output=%g, self=%a, weight=%w, counts=%n, output_mask=[true, true]", 2 * 2 * 7 * 4 * 5},
    {"aten::mse_loss aten::l1_loss aten::smooth_l1_loss aten::huber_loss "
     "aten::binary_cross_entropy aten::binary_cross_entropy_with_logits aten::kl_div "
     "aten::soft_margin_loss",
     "a=4,6 t=4,6", "self=%a, target=%t, reduction=1", 10 * 4 * 6},
    {"aten::mse_loss_backward aten::smooth_l1_loss_backward aten::huber_loss_backward "
     "aten::binary_cross_entropy_backward",
     "g= a=4,6 t=4,6", "grad_output=%g, self=%a, target=%t, reduction=1", 10 * 4 * 6},
};

}  // namespace

TEST_CASE("flops are those that one counts by hand") {
  std::set<std::string> left = counted();
  for (const Count& count : kCounts) {
    std::istringstream words(count.ops);
    for (std::string op; words >> op;) {
      INFO(op);
      left.erase(op);
      // The results of a call, whatever their number.
      const OperatorCase c{count.leaves, op + "(" + count.arguments + ")"};
      CHECK(flops_of(c) == count.flops);
    }
  }
  // An operator with a count of its own has a line above.
  for (const std::string& op : left) FAIL_CHECK(op << " has no count by hand");
}

TEST_CASE("other operators take one operation an element of the result, views none") {
  CHECK(flops_of({"a=4,6 b=6", "%y = aten::add.Tensor(self=%a, other=%b)"}) == 4 * 6);
  CHECK(flops_of({"a=4,6 b=4,2", "%y = aten::cat(tensors=[%a, %b], dim=1)"}) == 4 * 8);
  CHECK(flops_of({"a=4,6", "%y = aten::reshape(self=%a, shape=[24])"}) == 0);
  CHECK(flops_of({"a=4,6", "%y = aten::transpose.int(self=%a, dim0=0, dim1=1)"}) == 0);
}
