// Derivatives of pooling and of windows taken apart. Pooling over one axis is that of images of
// height 1, as ATen has it.
#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

std::vector<int64_t> per_axis(const RuleCall& c, std::string_view name, size_t n,
                              int64_t fallback) {
  std::vector<int64_t> values = c.ints(name);
  if (values.empty()) values.push_back(fallback);
  if (values.size() == 1) values.resize(n, values[0]);
  return values;
}
std::vector<int64_t> strides(const RuleCall& c, size_t n) {
  return c.ints("stride").empty() ? per_axis(c, "kernel_size", n, 1) : per_axis(c, "stride", n, 1);
}
std::string ranked(std::string_view stem, size_t n, std::string_view rest = {}) {
  return fmt::format("aten::{}{}d{}", stem, n, rest);
}

// --- one axis ------------------------------------------------------------------------------------

// Behind an axis of size 1, and the results without it again.
template <class Write>
bool as_image(Forward& f, Write write) {
  if (!f.training()) return false;
  const Ref image = f.grad_call("aten::unsqueeze", f.in("self"), -2);
  for (Ref y : write(image)) {
    Shape to = f.e.shape(y);
    to.erase(to.end() - 2);
    f.result(f.grad_call("aten::reshape", y, to));
  }
  return true;
}
Shape behind(int64_t one, int64_t size) {
  return {one, size};
}
bool max_pool1d(Forward& f) {
  return as_image(f, [&](Ref image) {
    return f.grad_calls("aten::max_pool2d",
                        {to_arg(image), behind(1, per_axis(f, "kernel_size", 1, 1)[0]),
                         behind(1, strides(f, 1)[0]), behind(0, per_axis(f, "padding", 1, 0)[0]),
                         behind(1, per_axis(f, "dilation", 1, 1)[0]), f.boolean("ceil_mode")});
  });
}
bool avg_pool1d(Forward& f) {
  return as_image(f, [&](Ref image) {
    return f.grad_calls("aten::avg_pool2d",
                        {to_arg(image), behind(1, per_axis(f, "kernel_size", 1, 1)[0]),
                         behind(1, strides(f, 1)[0]), behind(0, per_axis(f, "padding", 1, 0)[0]),
                         f.boolean("ceil_mode"), f.boolean("count_include_pad", true)});
  });
}
template <const char* kOp>
bool adaptive_pool1d(Forward& f) {
  return as_image(f, [&](Ref image) {
    return f.grad_calls(kOp, {to_arg(image), behind(1, f.ints("output_size").at(0))});
  });
}
constexpr char kAverage[] = "aten::adaptive_avg_pool2d";
constexpr char kMaximum[] = "aten::adaptive_max_pool2d";

// --- two and three axes --------------------------------------------------------------------------

template <size_t kAxes>
bool max_pool(Forward& f) {
  if (!f.training()) return false;
  const auto outs = f.e.emit(ranked("max_pool", kAxes, "_with_indices"), f.in("self"),
                             per_axis(f, "kernel_size", kAxes, 1), strides(f, kAxes),
                             per_axis(f, "padding", kAxes, 0), per_axis(f, "dilation", kAxes, 1),
                             f.boolean("ceil_mode"));
  f.result(outs[0]);
  f.keep("indices", outs[1]);
  return true;
}
template <size_t kAxes>
void max_pool_back(B& b) {
  b.give("self", b(ranked("max_pool", kAxes, "_with_indices_backward"), b.grad(), b.in("self"),
                   per_axis(b, "kernel_size", kAxes, 1), strides(b, kAxes),
                   per_axis(b, "padding", kAxes, 0), per_axis(b, "dilation", kAxes, 1),
                   b.boolean("ceil_mode"), b.kept("indices")));
}
template <size_t kAxes>
void avg_pool_back(B& b) {
  b.give("self", b(ranked("avg_pool", kAxes, "_backward"), b.grad(), b.in("self"),
                   per_axis(b, "kernel_size", kAxes, 1), strides(b, kAxes),
                   per_axis(b, "padding", kAxes, 0), b.boolean("ceil_mode"),
                   b.boolean("count_include_pad", true), b.arg("divisor_override")));
}
// One output element: a mean over the picture, as ATen itself does it.
template <size_t kAxes>
bool adaptive_avg_pool(Forward& f) {
  const Shape size = per_axis(f, "output_size", kAxes, 1);
  if (!f.training()) return false;
  Shape axes;
  for (size_t i = 0; i < kAxes; ++i) axes.push_back(-1 - static_cast<int64_t>(i));
  if (size == Shape(kAxes, 1))
    f.result(f.grad_call("aten::mean.dim", f.in("self"), axes, true));
  else
    f.result(f.grad_call(ranked("_adaptive_avg_pool", kAxes), f.in("self"), size));
  return true;
}
template <size_t kAxes>
void adaptive_avg_pool_back(B& b) {
  b.give("self", b(ranked("_adaptive_avg_pool", kAxes, "_backward"), b.grad(), b.in("self")));
}
template <size_t kAxes>
void adaptive_max_pool_back(B& b) {
  b.give("self",
         b(ranked("adaptive_max_pool", kAxes, "_backward"), b.grad(), b.in("self"), b.out(1)));
}

// --- windows apart -------------------------------------------------------------------------------

void im2col_back(B& b) {
  const Shape in = b.shape("self");
  b.give("self", b("aten::col2im", b.grad(), Shape(in.end() - 2, in.end()), b.ints("kernel_size"),
                   b.ints("dilation"), b.ints("padding"), b.ints("stride")));
}
void col2im_back(B& b) {
  b.give("self", b("aten::im2col", b.grad(), b.ints("kernel_size"), b.ints("dilation"),
                   b.ints("padding"), b.ints("stride")));
}

}  // namespace

void add_pooling_derivatives(Records& records) {
  records.derive("aten::max_pool1d", expands(max_pool1d));
  records.derive("aten::avg_pool1d", expands(avg_pool1d));
  records.derive("aten::adaptive_avg_pool1d", expands(adaptive_pool1d<kAverage>));
  records.derive("aten::adaptive_max_pool1d", expands(adaptive_pool1d<kMaximum>));

  records.derive("aten::max_pool2d", rewrite(max_pool<2>, max_pool_back<2>));
  records.derive("aten::max_pool3d", rewrite(max_pool<3>, max_pool_back<3>));
  records.derive("aten::avg_pool2d", gradient(avg_pool_back<2>));
  records.derive("aten::avg_pool3d", gradient(avg_pool_back<3>));
  records.derive("aten::adaptive_avg_pool2d", expands(adaptive_avg_pool<2>));
  records.derive("aten::adaptive_avg_pool3d", expands(adaptive_avg_pool<3>));
  records.derive("aten::_adaptive_avg_pool2d", gradient(adaptive_avg_pool_back<2>));
  records.derive("aten::_adaptive_avg_pool3d", gradient(adaptive_avg_pool_back<3>));
  records.derive("aten::adaptive_max_pool2d", gradient(adaptive_max_pool_back<2>));
  records.derive("aten::adaptive_max_pool3d", gradient(adaptive_max_pool_back<3>));

  records.derive("aten::im2col", gradient(im2col_back));
  records.derive("aten::col2im", gradient(col2im_back));
}

}  // namespace nns::operators
