#include "annotate/assisted.h"

#include <algorithm>
#include <array>

namespace nns::annotate {
namespace {

constexpr int64_t kMean = 1;
constexpr std::array kClassLosses = {"aten::cross_entropy_loss", "aten::nll_loss",
                                     "aten::nll_loss2d", "aten::nll_loss_nd"};
constexpr std::array kLosses = {"aten::mse_loss",
                                "aten::l1_loss",
                                "aten::smooth_l1_loss",
                                "aten::huber_loss",
                                "aten::binary_cross_entropy",
                                "aten::binary_cross_entropy_with_logits",
                                "aten::kl_div",
                                "aten::soft_margin_loss"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}
bool cuts(const TensorSplit& split, int dim) {
  return std::find(split.axes.begin(), split.axes.end(), dim) != split.axes.end();
}

}  // namespace

bool is_loss(std::string_view op) {
  const std::string_view base = op.substr(0, op.find('.'));
  return contains(kClassLosses, base) || contains(kLosses, base);
}

bool is_assisted(const CallView& call, const Split& split) {
  if (split.outputs.empty() || split.inputs.empty()) return false;
  const std::string_view base = call.base();
  const TensorSplit& in = split.inputs[0];
  const bool sums = split.outputs[0].kind == TensorSplit::Kind::value;
  if (base == "aten::linear") return sums && call.has("bias");
  if (base == "aten::mean") return sums;
  if (base == "aten::embedding") return cuts(in, 0);
  if (base == "aten::batch_norm") return call.boolean("training") && !cuts(in, 1);
  if (!is_loss(base)) return false;
  const int classes = call.tensor("self").shape.size() == 1 ? 0 : 1;
  return (sums && call.integer("reduction", kMean) == kMean) ||
         (contains(kClassLosses, base) && cuts(in, classes));
}

}  // namespace nns::annotate
