// Records of pooling over one, two or three axes, and of sliding windows taken apart (im2col) and
// summed up again (col2im). Batch and channels are spatial, the image stays whole (windows reach
// over a cut).
#include "operators/family.h"

namespace nns::operators {
namespace {

int64_t at_or_last(const std::vector<int64_t>& list, size_t i, int64_t if_empty) {
  return list.empty() ? if_empty : list[std::min(i, list.size() - 1)];
}

Shape check_image(const CallView& call) {
  const TensorType& self = first(call);
  const size_t space = image_axes(call);
  if (self.shape.size() < space + 1 || self.shape.size() > space + 2)
    call.fail(fmt::format("{}; expected [batch, channels, …] with {} axes of the image",
                          to_string(self), space));
  return self.shape;
}
Types pool(const CallView& call) {
  Shape out = check_image(call);
  const size_t space = image_axes(call);
  const auto kernel = call.ints("kernel_size"), pad = call.ints("padding"),
             dilation = call.ints("dilation");
  auto stride = call.ints("stride");
  if (stride.empty()) stride = kernel;
  for (size_t i = 0; i < space; ++i) {
    int64_t& size = out[out.size() - space + i];
    const int64_t s = at_or_last(stride, i, 1), p = at_or_last(pad, i, 0);
    const int64_t room =
        size + 2 * p - at_or_last(dilation, i, 1) * (at_or_last(kernel, i, 1) - 1) - 1;
    if (room < 0 || s < 1)
      call.fail(fmt::format("windows {} do not fit {}", to_string(kernel), to_string(first(call))));
    const bool ceil = call.boolean("ceil_mode");
    int64_t count = (room + (ceil ? s - 1 : 0)) / s + 1;
    if (ceil && (count - 1) * s >= size + p) --count;  // the last window starts inside
    size = count;
  }
  return {{out, first(call).dtype}};
}
Types adaptive_pool(const CallView& call) {
  Shape out = check_image(call);
  const size_t space = image_axes(call);
  const auto size = call.ints("output_size");
  for (size_t i = 0; i < space; ++i) out[out.size() - space + i] = at_or_last(size, i, 1);
  return {{out, first(call).dtype}};
}
template <Types (*kPool)(const CallView&)>
Types with_indices(const CallView& call) {
  const TensorType out = kPool(call)[0];
  return {out, {out.shape, DType::i64}};
}
Types like_self(const CallView& call) {
  return {call.tensor("self")};
}
double pool_flops(const CallView& call) {
  double window = 1;
  const auto kernel = call.ints("kernel_size");
  for (size_t i = 0; i < image_axes(call); ++i)
    window *= static_cast<double>(at_or_last(kernel, i, 1));
  return window * static_cast<double>(numel(infer(call)[0].shape));
}

// --- windows apart -------------------------------------------------------------------------------

struct Windows {
  int64_t elements = 1, count = 1;  // of a window; of windows over the image
};
Windows windows_over(const CallView& call, int64_t height, int64_t width) {
  const auto kernel = call.ints("kernel_size"), dilation = call.ints("dilation"),
             padding = call.ints("padding"), stride = call.ints("stride");
  Windows w;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t k = at_or_last(kernel, i, 1), s = at_or_last(stride, i, 1);
    const int64_t room = (i == 0 ? height : width) + 2 * at_or_last(padding, i, 0) -
                         at_or_last(dilation, i, 1) * (k - 1) - 1;
    if (room < 0 || s < 1)
      call.fail(fmt::format("windows {} do not fit {}", to_string(kernel), to_string(first(call))));
    w.elements *= k;
    w.count *= room / s + 1;
  }
  return w;
}
Types im2col(const CallView& call) {
  const Shape& in = first(call).shape;
  if (in.size() != 3 && in.size() != 4)
    call.fail(to_string(first(call)) + "; expected [batch, channels, height, width]");
  const Windows w = windows_over(call, in[in.size() - 2], in[in.size() - 1]);
  Shape out(in.begin(), in.end() - 2);
  out.back() *= w.elements;
  out.push_back(w.count);
  return {{out, first(call).dtype}};
}
Types col2im(const CallView& call) {
  const Shape& in = first(call).shape;
  const auto size = call.ints("output_size");
  const Windows w = windows_over(call, at_or_last(size, 0, 1), at_or_last(size, 1, 1));
  if ((in.size() != 2 && in.size() != 3) || in[in.size() - 2] % w.elements != 0 ||
      in.back() != w.count)
    call.fail(fmt::format("{}; expected [batch, channels · {}, {}]", to_string(first(call)),
                          w.elements, w.count));
  Shape out(in.begin(), in.end() - 1);
  out.back() /= w.elements;
  out.push_back(at_or_last(size, 0, 1));
  out.push_back(at_or_last(size, 1, 1));
  return {{out, first(call).dtype}};
}
// Channels are the slow part of the axis that the elements of a window lie on.
Texts windows_text(const CallView& call) {
  const Shape in = first(call).shape, out = infer(call)[0].shape;
  const bool apart = out.size() < in.size();
  const Shape &image = apart ? in : out, &columns = apart ? out : in;
  DimTexts pictures, pieces;
  if (image.size() == 4) pictures = pieces = {"n"};
  const size_t at = image.size() - 3;
  pictures.push_back("c");
  for (size_t i = at + 1; i < image.size(); ++i) pictures.push_back(std::to_string(image[i]));
  const int64_t elements = image[at] == 0 ? 1 : columns[at] / image[at];
  pieces.push_back(fmt::format("(c {})", elements));
  pieces.push_back(std::to_string(columns.back()));
  return {apart ? annotation({pictures}, {pieces}) : annotation({pieces}, {pictures})};
}

}  // namespace

size_t image_axes(const CallView& call) {
  const std::string_view name = call.base();
  if (name.find("1d") != std::string_view::npos) return 1;
  return name.find("3d") != std::string_view::npos ? 3 : 2;
}

// Batch and channels spatial in every tensor.
Texts image_text(const CallView& call) {
  const auto name = [&call](const TensorType& t) {
    const size_t lead = t.shape.size() - std::min(t.shape.size(), image_axes(call));
    DimTexts dims = letters(lead);
    for (size_t i = lead; i < t.shape.size(); ++i) dims.push_back(std::to_string(t.shape[i]));
    return dims;
  };
  std::vector<DimTexts> in, out;
  for (const TensorType* t : call.operands()) in.push_back(name(*t));
  for (const TensorType& t : infer(call)) out.push_back(name(t));
  return {annotation(in, out)};
}

void add_pooling(Records& records) {
  records.add({"aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::avg_pool1d",
               "aten::avg_pool2d", "aten::avg_pool3d"},
              {.infer = pool, .annotations = image_text, .flops = pool_flops});
  records.add({"aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices"},
              {.infer = with_indices<pool>, .annotations = image_text, .flops = pool_flops});
  records.add(
      {"aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::adaptive_avg_pool3d",
       "aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d"},
      {.infer = adaptive_pool, .annotations = image_text});
  records.add(
      {"aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d"},
      {.infer = with_indices<adaptive_pool>, .annotations = image_text});
  records.add({"aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward",
               "aten::avg_pool2d_backward", "aten::avg_pool3d_backward",
               "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
               "aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward"},
              {.infer = like_self, .annotations = image_text});

  records.add({"aten::im2col"}, {.infer = im2col, .annotations = windows_text});
  records.add({"aten::col2im"}, {.infer = col2im, .annotations = windows_text});

  records.examples("max_pool1d",
                   "{ f(2, 4, 9), { 2 } }, { f(4, 9), { 3 }, { 2 }, { 1 }, { 1 }, true }");
  records.examples("avg_pool1d",
                   "{ f(2, 4, 9), { 2 } }, { f(4, 9), { 3 }, { 2 }, { 1 }, true, false }");
  records.examples("max_pool2d",
                   "{ f(2, 4, 5, 7), { 2, 2 } }, { f(2, 4, 5, 7), { 3, 2 }, { 2, 2 }, { 1, 0 }, { "
                   "1, 1 }, true }");
  records.examples(
      "avg_pool2d",
      "{ f(2, 4, 5, 7), { 2, 2 } }, { f(2, 4, 5, 7), { 3, 3 }, { 2, 2 }, { 1, 1 }, true }");
  records.examples("max_pool3d avg_pool3d",
                   "{ f(2, 4, 4, 5, 6), { 2 } }, { f(4, 4, 5, 6), { 2, 3, 2 }, { 1, 2, 2 } }");
  records.examples("max_pool2d_with_indices", "{ f(2, 4, 5, 7), { 2, 2 } }");
  records.examples("max_pool3d_with_indices", "{ f(2, 4, 4, 5, 6), { 2 } }");
  records.examples(
      "max_pool2d_with_indices_backward",
      "local image = f(2, 4, 4, 6) local _, indices = aten.max_pool2d_with_indices(image, { 2, 2 "
      "}) return { f(2, 4, 2, 3), image, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 }, false, indices }");
  records.examples(
      "max_pool3d_with_indices_backward",
      "local image = f(2, 4, 4, 4, 6) local _, indices = aten.max_pool3d_with_indices(image, { 2 "
      "}) return { f(2, 4, 2, 2, 3), image, { 2 }, { 2 }, { 0 }, { 1 }, false, indices }");
  records.examples(
      "avg_pool2d_backward",
      "{ n = 8, f(2, 4, 2, 3), f(2, 4, 4, 6), { 2, 2 }, { 2, 2 }, { 0, 0 }, false, true, nil }");
  records.examples(
      "avg_pool3d_backward",
      "{ n = 8, f(2, 4, 2, 2, 3), f(2, 4, 4, 4, 6), { 2 }, { 2 }, { 0 }, false, true, nil }");
  records.examples("adaptive_avg_pool1d adaptive_max_pool1d", "{ f(2, 4, 9), { 3 } }");
  records.examples("adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d",
                   "{ f(2, 4, 5, 7), { 2, 3 } }");
  records.examples("adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d",
                   "{ f(2, 4, 4, 5, 7), { 2, 3, 1 } }");
  records.examples("_adaptive_avg_pool2d_backward", "{ f(2, 4, 2, 3), f(2, 4, 5, 7) }");
  records.examples("_adaptive_avg_pool3d_backward", "{ f(2, 4, 2, 3, 1), f(2, 4, 4, 5, 7) }");
  records.examples(
      "adaptive_max_pool2d_backward",
      "local image = f(2, 4, 5, 7) local _, indices = aten.adaptive_max_pool2d(image, { 2, 3 }) "
      "return { f(2, 4, 2, 3), image, indices }");
  records.examples(
      "adaptive_max_pool3d_backward",
      "local image = f(2, 4, 4, 5, 7) local _, indices = aten.adaptive_max_pool3d(image, { 2, 3, 1 "
      "}) return { f(2, 4, 2, 3, 1), image, indices }");

  records.examples(
      "im2col",
      "{ f(2, 4, 5, 6), { 2, 3 }, { 1, 1 }, { 0, 0 }, { 1, 1 } }, { f(4, 5, 6), { 2, 2 "
      "}, { 2, 1 }, { 1, 0 }, { 2, 2 } }");
  records.examples(
      "col2im",
      "{ f(2, 24, 16), { 5, 6 }, { 2, 3 }, { 1, 1 }, { 0, 0 }, { 1, 1 } }, { f(16, 9), "
      "{ 5, 6 }, { 2, 2 }, { 2, 1 }, { 1, 0 }, { 2, 2 } }");
}

}  // namespace nns::operators
