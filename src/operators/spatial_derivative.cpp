// Derivatives of convolutions and pooling: all convolutions become aten::convolution.
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

bool max_pool2d(Forward& f) {
  if (!f.training()) return false;
  const auto kernel = per_dim(f, "kernel_size", 2, 1);
  const auto stride = f.ints("stride").empty() ? kernel : per_dim(f, "stride", 2, 1);
  const auto outs =
      f.e.emit("aten::max_pool2d_with_indices", f.in("self"), kernel, stride,
               per_dim(f, "padding", 2, 0), per_dim(f, "dilation", 2, 1), f.boolean("ceil_mode"));
  f.result(outs[0]);
  f.keep("indices", outs[1]);
  return true;
}
void max_pool2d_back(B& b) {
  const auto kernel = per_dim(b, "kernel_size", 2, 1);
  const auto stride = b.ints("stride").empty() ? kernel : per_dim(b, "stride", 2, 1);
  b.give("self", b("aten::max_pool2d_with_indices_backward", b.grad(), b.in("self"), kernel, stride,
                   per_dim(b, "padding", 2, 0), per_dim(b, "dilation", 2, 1),
                   b.boolean("ceil_mode"), b.kept("indices")));
}

void avg_pool2d(B& b) {
  const auto kernel = per_dim(b, "kernel_size", 2, 1);
  const auto stride = b.ints("stride").empty() ? kernel : per_dim(b, "stride", 2, 1);
  b.give("self", b("aten::avg_pool2d_backward", b.grad(), b.in("self"), kernel, stride,
                   per_dim(b, "padding", 2, 0), b.boolean("ceil_mode"),
                   b.boolean("count_include_pad", true), b.arg("divisor_override")));
}

// One output element: a mean over the picture, as ATen itself does it.
bool adaptive_avg_pool2d(Forward& f) {
  const Shape size = f.ints("output_size");
  if (!f.training()) return false;
  if (size == Shape{1, 1})
    f.result(f.grad_call("aten::mean.dim", f.in("self"), Shape{-1, -2}, true));
  else
    f.result(f.grad_call("aten::_adaptive_avg_pool2d", f.in("self"), size));
  return true;
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
  records.derive("aten::max_pool2d", rewrite(max_pool2d, max_pool2d_back));
  records.derive("aten::avg_pool2d", gradient(avg_pool2d));
  records.derive("aten::adaptive_avg_pool2d", expands(adaptive_avg_pool2d));
  records.derive("aten::_adaptive_avg_pool2d", gradient([](B& b) {
                   b.give("self", b("aten::_adaptive_avg_pool2d_backward", b.grad(), b.in("self")));
                 }));
}

}  // namespace nns::operators
