// Derivatives of convolutions: all convolutions become aten::convolution.
#include <algorithm>

#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

std::vector<int64_t> per_dim(const RuleCall& c, std::string_view name, size_t n, int64_t fallback) {
  std::vector<int64_t> values = c.ints(name);
  if (values.empty()) values.push_back(fallback);
  if (values.size() == 1) values.resize(n, values[0]);
  return values;
}

// conv1d … conv3d and their transposed forms; "same" padding that is uneven pads the input first.
template <bool kTransposed>
bool convolution(Forward& f) {
  const Shape weight = f.shape("weight");
  const size_t n = weight.size() - 2;
  Ref input = f.in("input");
  const bool batched = f.shape("input").size() == weight.size();
  if (!batched) input = f.grad_call("aten::unsqueeze", input, 0);
  const auto stride = per_dim(f, "stride", n, 1), dilation = per_dim(f, "dilation", n, 1);
  std::vector<int64_t> padding(n, 0);
  if (std::holds_alternative<std::string>(f.arg("padding"))) {
    if (f.text("padding") == "same") {
      Shape extra;
      for (size_t i = 0; i < n; ++i) {
        const int64_t total = dilation[i] * (weight[i + 2] - 1);
        padding[i] = total / 2;
        extra.insert(extra.begin(), {0, total % 2});
      }
      if (std::any_of(extra.begin(), extra.end(), [](int64_t e) { return e != 0; }))
        input = f.grad_call("aten::constant_pad_nd", input, extra, 0.0);
    }
  } else {
    padding = per_dim(f, "padding", n, 0);
  }
  const auto output_padding = per_dim(f, "output_padding", n, 0);
  Ref y = f.grad_call("aten::convolution", input, f.in("weight"), f.in("bias"), stride, padding,
                      dilation, kTransposed, output_padding, f.integer("groups", 1));
  if (!batched) {
    Shape to = f.e.shape(y);
    to.erase(to.begin());
    y = f.grad_call("aten::reshape", y, to);
  }
  f.result(y);
  return true;
}

void convolution_back(B& b) {
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight"), b.needs("bias")};
  const Arg sizes = b.has("bias") ? Arg(b.shape("bias")) : Arg();
  const auto outs =
      b.e.emit("aten::convolution_backward", b.grad(), b.in("input"), b.in("weight"), sizes,
               b.ints("stride"), b.ints("padding"), b.ints("dilation"), b.boolean("transposed"),
               b.ints("output_padding"), b.integer("groups"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
  b.give("bias", outs[2]);
}

}  // namespace

void add_spatial_derivatives(Records& records) {
  records.derive("aten::conv1d", expands(convolution<false>));
  records.derive("aten::conv2d", expands(convolution<false>));
  records.derive("aten::conv3d", expands(convolution<false>));
  records.derive("aten::conv_transpose1d", expands(convolution<true>));
  records.derive("aten::conv_transpose2d", expands(convolution<true>));
  records.derive("aten::conv_transpose3d", expands(convolution<true>));
  records.derive("aten::convolution", gradient(convolution_back));
}

}  // namespace nns::operators
