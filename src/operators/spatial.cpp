// Records of convolutions. Batch and channels are spatial, sizes of the image stay whole (windows
// reach over a cut).
#include "operators/family.h"

namespace nns::operators {
namespace {

std::string number(int64_t x) {
  return std::to_string(x);
}

int64_t at_or_last(const std::vector<int64_t>& list, size_t i, int64_t if_empty) {
  return list.empty() ? if_empty : list[std::min(i, list.size() - 1)];
}

// --- convolutions --------------------------------------------------------------------------------

struct Conv {
  const TensorType *input, *weight;
  bool batched, transposed;
  int64_t groups;
  size_t space;  // axes of the image
};
Conv conv_of(const CallView& call) {
  Conv c{&call.tensor("input"),      &call.tensor("weight"),    true,
         call.boolean("transposed"), call.integer("groups", 1), 0};
  if (call.base().starts_with("aten::conv_transpose")) c.transposed = true;
  const Shape &in = c.input->shape, &w = c.weight->shape;
  c.batched = in.size() == w.size();
  if (w.size() < 3 || in.size() + 1 < w.size() || in.size() > w.size())
    misfit(call, *c.input, *c.weight, "[batch, channels, …] and [out, in, …] of as many axes");
  if (c.input->dtype != c.weight->dtype) misfit(call, *c.input, *c.weight, "one dtype");
  c.space = w.size() - 2;
  const int64_t have = in[c.batched ? 1 : 0];
  const int64_t want = c.transposed ? w[0] : w[1] * c.groups;
  if (have != want || c.groups < 1 || w[0] % c.groups != 0)
    misfit(call, *c.input, *c.weight, fmt::format("{} input channels ({} groups)", want, c.groups));
  return c;
}
Shape conv_shape(const CallView& call, const Conv& c) {
  const Shape &in = c.input->shape, &w = c.weight->shape;
  const auto stride = call.ints("stride"), dilation = call.ints("dilation");
  const auto* padding = call.find("padding");
  const bool named = padding != nullptr && std::holds_alternative<std::string>(*padding);
  const bool keep = named && call.text("padding") == "same";
  const auto pad = named ? std::vector<int64_t>{} : call.ints("padding");
  const auto extra = call.ints("output_padding");
  Shape out;
  if (c.batched) out.push_back(in[0]);
  out.push_back(c.transposed ? w[1] * c.groups : w[0]);
  for (size_t i = 0; i < c.space; ++i) {
    const int64_t size = in[in.size() - c.space + i];
    const int64_t s = at_or_last(stride, i, 1), d = at_or_last(dilation, i, 1);
    const int64_t p = at_or_last(pad, i, 0), reach = d * (w[2 + i] - 1);
    int64_t length = keep ? size : (size + 2 * p - reach - 1) / s + 1;
    if (c.transposed) length = (size - 1) * s - 2 * p + reach + at_or_last(extra, i, 0) + 1;
    if (!keep && !c.transposed && size + 2 * p - reach < 1)
      misfit(call, *c.input, *c.weight, "a window no larger than the padded image");
    out.push_back(length);
  }
  return out;
}
Types convolution(const CallView& call) {
  const Conv c = conv_of(call);
  const Shape out = conv_shape(call, c);
  if (const TensorType* bias = call.maybe_tensor("bias"))
    if (bias->shape != Shape{out[c.batched ? 1 : 0]})
      misfit(call, *c.weight, *bias, fmt::format("a bias of shape [{}]", out[c.batched ? 1 : 0]));
  return {{out, c.input->dtype}};
}
// Dims of the image in numbers, behind the given leading ones.
DimTexts with_space(DimTexts lead, const Shape& shape, size_t space) {
  for (size_t i = shape.size() - space; i < shape.size(); ++i) lead.push_back(number(shape[i]));
  return lead;
}
struct ConvDims {
  DimTexts input, weight, bias, output;
};
// Input channels sum up (frozen under a bias); groups split by the argument of their name.
ConvDims conv_dims(const Conv& c, const Shape& out, std::string_view batch_mark,
                   std::string_view in_mark, std::string_view out_mark) {
  const std::string n = "n" + std::string(batch_mark), ch = "c" + std::string(in_mark),
                    o = "o" + std::string(out_mark);
  DimTexts lead_in, lead_out, w = c.transposed ? DimTexts{ch, o} : DimTexts{o, ch};
  if (c.batched) lead_in = lead_out = {n};
  ConvDims d;
  d.bias = {o};
  if (c.groups == 1) {
    lead_in.push_back(ch);
    lead_out.push_back(o);
  } else {
    lead_in.push_back("(groups c^)");
    lead_out.push_back("(groups o^)");
    w = c.transposed ? DimTexts{"(groups c^)", "o^"} : DimTexts{"(groups o^)", "c^"};
    d.bias = {"(groups o^)"};
  }
  d.input = with_space(lead_in, c.input->shape, c.space);
  d.weight = with_space(w, c.weight->shape, c.space);
  d.output = with_space(lead_out, out, c.space);
  return d;
}
Texts convolution_text(const CallView& call) {
  const Conv c = conv_of(call);
  const bool bias = call.has("bias");
  const ConvDims d = conv_dims(c, conv_shape(call, c), "", bias ? "^" : "+", "");
  std::vector<DimTexts> in = {d.input, d.weight};
  if (bias) in.push_back(d.bias);
  return {annotation(in, {d.output})};
}
double convolution_flops(const CallView& call) {
  const Conv c = conv_of(call);
  const Shape& small = c.transposed ? c.input->shape : conv_shape(call, c);
  const double window =
      static_cast<double>(numel(c.weight->shape)) / static_cast<double>(c.weight->shape[0]);
  return 2 * static_cast<double>(numel(small)) * window;
}
Types convolution_backward(const CallView& call) {
  const Conv c = conv_of(call);
  const TensorType& grad = call.tensor("grad_output");
  if (grad.shape != conv_shape(call, c))
    misfit(call, grad, *c.input, "a gradient of shape " + to_string(conv_shape(call, c)));
  const auto mask = call.bools("output_mask");
  const TensorType bias{{grad.shape[c.batched ? 1 : 0]}, grad.dtype};
  Types out = {*c.input, *c.weight, bias};
  for (size_t i = 0; i < out.size(); ++i)
    if (!mask.at(i)) out[i] = undefined_output(grad.dtype);
  return out;
}
// Gradients of weight and bias sum over the batch, that of the input over output channels; the
// latter stay whole when bias_sizes spells their number.
Texts convolution_backward_text(const CallView& call) {
  const Conv c = conv_of(call);
  if (c.groups != 1) return {};
  const ConvDims d =
      conv_dims(c, call.tensor("grad_output").shape, "+", "", call.has("bias_sizes") ? "^" : "+");
  const auto mask = call.bools("output_mask");
  std::vector<DimTexts> out = {d.input, d.weight, d.bias};
  for (size_t i = 0; i < out.size(); ++i)
    if (!mask.at(i)) out[i] = {"0"};
  return {annotation({d.output, d.input, d.weight}, out)};
}
double convolution_backward_flops(const CallView& call) {
  return 2 * convolution_flops(call);
}

}  // namespace

void add_spatial(Records& records) {
  records.add({"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
               "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"},
              {.infer = convolution, .annotations = convolution_text, .flops = convolution_flops});
  records.add({"aten::convolution_backward"}, {.infer = convolution_backward,
                                               .annotations = convolution_backward_text,
                                               .flops = convolution_backward_flops});

  records.examples(
      "conv1d",
      "{ f(2, 4, 9), f(6, 4, 3) }, { f(2, 4, 9), f(6, 2, 3), f(6), { 2 }, { 1 }, { 1 }, 2 }");
  records.examples("conv2d",
                   "{ f(2, 4, 8, 9), f(6, 4, 3, 3) }, { f(2, 4, 8, 9), f(6, 4, 3, 3), f(6), { 2, 1 "
                   "}, { 1, 0 } }, { n = 7, f(2, 4, 8, 9), f(6, 2, 3, 3), nil, { 1, 1 }, { 0, 0 }, "
                   "{ 2, 1 }, 2 }, { f(4, 8, 8), f(6, 4, 3, 3) }, { op = 'conv2d.padding', n = 5, "
                   "f(2, 4, 8, 9), f(6, 4, 3, 3), nil, { 1, 1 }, 'same' }");
  records.examples("conv3d", "{ f(2, 4, 4, 5, 6), f(6, 4, 2, 2, 2) }");
  records.examples("conv_transpose1d", "{ f(2, 4, 5), f(4, 6, 3) }");
  records.examples("conv_transpose2d",
                   "{ f(2, 4, 5, 5), f(4, 6, 3, 3), f(6), { 2, 2 }, { 1, 1 }, { 1, 1 } }, { n = 7, "
                   "f(2, 4, 5, 5), f(4, 3, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 0, 0 }, 2 }");
  records.examples("conv_transpose3d", "{ f(2, 4, 3, 3, 3), f(4, 6, 2, 2, 2) }");
  records.examples("convolution",
                   "{ n = 9, f(2, 4, 8, 8), f(6, 4, 3, 3), nil, { 1, 1 }, { 1, 1 }, { 1, 1 }, "
                   "false, { 0, 0 }, 1 }, { n = 9, f(2, 4, 5, 5), f(4, 6, 3, 3), nil, { 1, 1 }, { "
                   "0, 0 }, { 1, 1 }, true, { 0, 0 }, 1 }");
  records.examples(
      "convolution_backward",
      "{ n = 11, f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 1, 1 }, "
      "false, { 0, 0 }, 1, { true, true, true } }, { f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), "
      "{ 6 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, false, { 0, 0 }, 1, { true, true, true } }, { n = 11, "
      "f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), nil, { 1, 1 }, { 0, 0 }, { 1, 1 }, false, { 0, "
      "0 }, 1, { false, true, false } }");
}

}  // namespace nns::operators
