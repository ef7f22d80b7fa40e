// Records of resampling images to another size, with their derivatives. Batch and channels are
// spatial.
#include <cmath>

#include "operators/family.h"

namespace nns::operators {
namespace {

Types upsample(const CallView& call) {
  const TensorType& image = first(call);
  const size_t space = image_axes(call);
  if (image.shape.size() != space + 2)
    call.fail(fmt::format("{}; expected [batch, channels, …] with {} axes of the image",
                          to_string(image), space));
  Shape out = image.shape;
  const auto size = call.ints("output_size");
  const auto scales = call.reals("scale_factors");
  for (size_t i = 0; i < space; ++i) {
    int64_t& length = out[2 + i];
    if (!size.empty())
      length = size.at(i);
    else
      length = static_cast<int64_t>(std::floor(static_cast<double>(length) * scales.at(i)));
  }
  return {{out, image.dtype}};
}
Types upsample_backward(const CallView& call) {
  return {{call.ints("input_size"), call.tensor("grad_output").dtype}};
}

// The backward of the same name takes the sizes of both images and the scales, if any were given.
void upsample_back(Backward& b) {
  const std::string_view operand = b.find("input") != nullptr ? "input" : "self";
  const Shape in = b.shape(operand), whole = b.e.shape(b.grad());
  std::vector<Arg> args = {to_arg(b.grad()), Shape(whole.begin() + 2, whole.end()), in};
  if (b.find("align_corners") != nullptr) args.push_back(b.boolean("align_corners"));
  const size_t space = image_axes(b);
  const auto factors = b.reals("scale_factors");
  const std::vector<std::string_view> names =
      space == 1   ? std::vector<std::string_view>{"scales"}
      : space == 2 ? std::vector<std::string_view>{"scales_h", "scales_w"}
                   : std::vector<std::string_view>{"scales_d", "scales_h", "scales_w"};
  for (size_t i = 0; i < space; ++i)
    args.push_back(factors.empty() ? b.arg(names[i]) : Arg(factors.at(i)));
  const std::string op = fmt::format("{}_backward", b.base());
  b.give(operand, b.e.call(op, named_args(op, std::move(args))).front());
}

}  // namespace

void add_resampling(Records& records) {
  records.add({"aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
               "aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d",
               "aten::upsample_bicubic2d"},
              {.infer = upsample, .annotations = image_text});
  records.add({"aten::upsample_nearest1d_backward", "aten::upsample_nearest2d_backward",
               "aten::upsample_nearest3d_backward", "aten::upsample_linear1d_backward",
               "aten::upsample_bilinear2d_backward", "aten::upsample_trilinear3d_backward",
               "aten::upsample_bicubic2d_backward"},
              {.infer = upsample_backward, .annotations = image_text, .size_arg = "input_size"});
  for (const auto name : {"nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d",
                          "trilinear3d", "bicubic2d"})
    records.derive(fmt::format("aten::upsample_{}", name), gradient(upsample_back));

  records.examples(
      "upsample_nearest1d",
      "{ f(2, 4, 5), { 8 } }, { n = 3, op = 'upsample_nearest1d.vec', f(2, 4, 5), nil, { 1.5 } }");
  records.examples("upsample_nearest2d",
                   "{ f(2, 4, 3, 5), { 6, 10 } }, { n = 3, op = 'upsample_nearest2d.vec', f(2, 4, "
                   "3, 5), nil, { 2, 2 } }");
  records.examples("upsample_nearest3d", "{ f(2, 4, 2, 3, 5), { 4, 5, 9 } }");
  records.examples("upsample_linear1d", "{ f(2, 4, 5), { 8 }, true }");
  records.examples("upsample_bilinear2d",
                   "{ f(2, 4, 3, 5), { 6, 10 }, false }, { n = 4, op = 'upsample_bilinear2d.vec', "
                   "f(2, 4, 3, 5), nil, false, { 1.5, 2 } }");
  records.examples("upsample_bicubic2d", "{ f(2, 4, 3, 5), { 6, 10 }, false }");
  records.examples("upsample_trilinear3d", "{ f(2, 4, 2, 3, 5), { 4, 5, 9 }, true }");
  records.examples("upsample_nearest1d_backward", "{ f(2, 4, 8), { 8 }, { 2, 4, 5 } }");
  records.examples("upsample_linear1d_backward", "{ f(2, 4, 8), { 8 }, { 2, 4, 5 }, true }");
  records.examples("upsample_nearest2d_backward", "{ f(2, 4, 6, 10), { 6, 10 }, { 2, 4, 3, 5 } }");
  records.examples("upsample_bilinear2d_backward upsample_bicubic2d_backward",
                   "{ f(2, 4, 6, 10), { 6, 10 }, { 2, 4, 3, 5 }, false }");
  records.examples("upsample_nearest3d_backward",
                   "{ f(2, 4, 4, 5, 9), { 4, 5, 9 }, { 2, 4, 2, 3, 5 } }");
  records.examples("upsample_trilinear3d_backward",
                   "{ f(2, 4, 4, 5, 9), { 4, 5, 9 }, { 2, 4, 2, 3, 5 }, true }");
}

}  // namespace nns::operators
