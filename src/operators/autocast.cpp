// What autocast does with the operands of operators: PyTorch's lists of each kind of device
// (ATen/autocast_mode.h; of a CPU also the kernels of its key AutocastCPU). An operator that
// PyTorch takes apart into listed ones stands with them.
#include "operators/family.h"

namespace nns::operators {

void add_autocast(Records& records) {
  const auto lower = [](Record& r) { r.autocast = {Cast::lower, Cast::lower}; };
  const auto full = [](Record& r) { r.autocast = {Cast::full, Cast::full}; };
  records.set(
      {"aten::addmm", "aten::baddbmm", "aten::bmm", "aten::conv1d", "aten::conv2d", "aten::conv3d",
       "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::einsum",
       "aten::linear", "aten::lstm.input", "aten::matmul", "aten::mm", "aten::prelu",
       "aten::rnn_relu.input", "aten::rnn_tanh.input", "aten::scaled_dot_product_attention"},
      lower);
  records.set({"aten::convolution", "aten::gru.input", "aten::mv"},
              [](Record& r) { r.autocast.cuda = Cast::lower; });
  records.set({"aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits",
               "aten::cross_entropy_loss", "aten::huber_loss", "aten::kl_div", "aten::l1_loss",
               "aten::mse_loss", "aten::nll_loss", "aten::nll_loss2d", "aten::nll_loss_nd",
               "aten::prod", "aten::smooth_l1_loss", "aten::soft_margin_loss"},
              full);
  records.set({"aten::adaptive_avg_pool3d", "aten::adaptive_max_pool3d", "aten::avg_pool3d",
               "aten::inverse", "aten::linalg_inv", "aten::max_pool3d", "aten::polar",
               "aten::view_as_complex"},
              [](Record& r) { r.autocast.cpu = Cast::full; });
  records.set({"aten::acos",
               "aten::asin",
               "aten::cosh",
               "aten::cumprod",
               "aten::cumsum",
               "aten::exp",
               "aten::expm1",
               "aten::group_norm",
               "aten::layer_norm",
               "aten::linalg_vector_norm",
               "aten::log",
               "aten::log10",
               "aten::log1p",
               "aten::log2",
               "aten::log_softmax",
               "aten::logsumexp",
               "aten::native_layer_norm",
               "aten::norm",
               "aten::pow",
               "aten::reciprocal",
               "aten::rms_norm",
               "aten::rsqrt",
               "aten::sinh",
               "aten::softmax",
               "aten::softplus",
               "aten::sum",
               "aten::tan",
               "aten::upsample_bicubic2d",
               "aten::upsample_bilinear2d",
               "aten::upsample_linear1d",
               "aten::upsample_nearest1d",
               "aten::upsample_nearest2d",
               "aten::upsample_nearest3d",
               "aten::upsample_trilinear3d"},
              [](Record& r) { r.autocast.cuda = Cast::full; });
  records.set({"aten::cat", "aten::index_copy", "aten::stack"},
              [](Record& r) { r.autocast.cpu = Cast::widest; });
  records.set({"aten::addcdiv", "aten::addcmul", "aten::atan2", "aten::dot", "aten::index_put",
               "aten::scatter_add", "aten::vdot"},
              [](Record& r) { r.autocast.cuda = Cast::widest; });
}

}  // namespace nns::operators
