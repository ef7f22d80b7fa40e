// Records of reductions, scans, sorting and the softmax family.
#include <algorithm>

#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

size_t rank_of(const CallView& call) {
  return first(call).shape.size();
}

// The axes that a reduction takes away: `dim` (one, several or all).
std::vector<bool> gone(const CallView& call) {
  return axes(call, "dim", rank_of(call));
}

Types reduce_to(const CallView& call, DType dtype) {
  const bool keepdim = call.boolean("keepdim");
  return {{reduced(first(call).shape, gone(call), keepdim), dtype}};
}

Types sum(const CallView& call) {
  return reduce_to(call, call.dtype("dtype").value_or(sum_dtype(first(call).dtype)));
}
Types mean(const CallView& call) {
  const DType dtype = call.dtype("dtype").value_or(first(call).dtype);
  if (!is_floating(dtype) && !is_complex(dtype))
    call.fail(fmt::format("mean of {}; expected a floating type", to_string(first(call))));
  return reduce_to(call, dtype);
}
Types extremum(const CallView& call) {
  return reduce_to(call, first(call).dtype);
}
Types norm(const CallView& call) {
  return reduce_to(call, real_part(call.dtype("dtype").value_or(to_float(first(call).dtype))));
}
Types log_sum_exp(const CallView& call) {
  return reduce_to(call, to_float(first(call).dtype));
}
Types truth(const CallView& call) {  // PyTorch keeps uint8 here
  const DType dtype = first(call).dtype;
  return reduce_to(call, dtype == DType::u8 ? DType::u8 : DType::boolean);
}
Types position(const CallView& call) {
  return reduce_to(call, DType::i64);
}
Types count_nonzero(const CallView& call) {
  return reduce_to(call, DType::i64);
}
Types variance(const CallView& call) {
  return reduce_to(call, real_part(first(call).dtype));
}
Types variance_and_mean(const CallView& call) {
  const Types v = variance(call);
  return {v[0], {v[0].shape, first(call).dtype}};
}
Types extremum_and_position(const CallView& call) {
  const Types v = extremum(call);
  return {v[0], {v[0].shape, DType::i64}};
}

// "a b+ -> a" (with keepdim "a 1"): `mark` says how the reduced axes may be split.
Texts reduction_text(const CallView& call, std::string_view mark) {
  const std::vector<bool> flags = gone(call);
  const DimTexts in = letters(flags.size(), flags, mark);
  DimTexts out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!flags[i])
      out.push_back(in[i]);
    else if (call.boolean("keepdim"))
      out.push_back("1");
  }
  return {annotation({in}, std::vector<DimTexts>(infer(call).size(), out))};
}
Texts summed(const CallView& call) {
  return reduction_text(call, "+");
}
Texts frozen_axes(const CallView& call) {
  return reduction_text(call, "^");
}

// --- along one axis, shape kept ------------------------------------------------------------------

std::vector<bool> along(const CallView& call) {
  std::vector<bool> flags(rank_of(call), false);
  const size_t i = axis(call, call.integer("dim", -1), flags.size());
  if (i < flags.size()) flags[i] = true;
  return flags;
}
Texts frozen_along(const CallView& call) {
  return aligned(call, along(call));
}

Types cumulative(const CallView& call) {
  along(call);
  const DType dtype = call.dtype("dtype").value_or(sum_dtype(first(call).dtype));
  return {{first(call).shape, dtype}};
}
Types softmax(const CallView& call) {
  along(call);
  return {{first(call).shape, call.dtype("dtype").value_or(first(call).dtype)}};
}
Types raw_softmax(const CallView& call) {  // _softmax(self, dim, half_to_float)
  along(call);
  const DType dtype = call.boolean("half_to_float") ? DType::f32 : first(call).dtype;
  return {{first(call).shape, dtype}};
}
Types softmax_backward(const CallView& call) {
  const TensorType& grad = call.tensor("grad_output");
  const TensorType& output = call.tensor("output");
  if (grad.shape != output.shape) misfit(call, grad, output, "equal shapes");
  along(call);
  return {{grad.shape, call.dtype("input_dtype").value_or(grad.dtype)}};
}
double softmax_flops(const CallView& call) {
  return 10.0 * static_cast<double>(numel(first(call).shape));
}

Types sorted(const CallView& call) {
  along(call);
  return {first(call), {first(call).shape, DType::i64}};
}
Types sorted_positions(const CallView& call) {
  along(call);
  return {{first(call).shape, DType::i64}};
}
Types top_k(const CallView& call) {
  TensorType values = first(call);
  const int64_t k = call.integer("k");
  const size_t i = axis(call, call.integer("dim", -1), values.shape.size());
  const int64_t size = values.shape.empty() ? 1 : values.shape[i];
  if (k < 0 || k > size)
    call.fail(fmt::format("k = {} of {}; expected 0 to {}", k, to_string(values), size));
  if (!values.shape.empty()) values.shape[i] = k;
  return {values, {values.shape, DType::i64}};
}
Texts top_k_text(const CallView& call) {
  const std::vector<bool> flags = along(call);
  const DimTexts in = letters(flags.size(), flags, "^");
  DimTexts out = in;
  for (size_t i = 0; i < out.size(); ++i)
    if (flags[i]) out[i] = std::to_string(call.integer("k"));
  return {annotation({in}, {out, out})};
}

Types diff(const CallView& call) {
  TensorType out = first(call);
  if (out.shape.empty()) call.fail("a 0-dim tensor has no differences");
  const size_t i = axis(call, call.integer("dim", -1), out.shape.size());
  for (const auto name : {"prepend", "append"})
    if (const TensorType* more = call.maybe_tensor(name)) out.shape[i] += more->shape.at(i);
  out.shape[i] = std::max<int64_t>(0, out.shape[i] - call.integer("n", 1));
  return {out};
}
Texts diff_text(const CallView& call) {
  const TensorType& self = first(call);
  const size_t rank = self.shape.size(), i = axis(call, call.integer("dim", -1), rank);
  std::vector<DimTexts> in;
  for (const TensorType* t : call.operands()) {
    in.push_back(letters(rank));
    in.back()[i] = std::to_string(t->shape.at(i));
  }
  DimTexts out = letters(rank);
  out[i] = std::to_string(infer(call)[0].shape[i]);
  return {annotation(in, {out})};
}

Types histogram(const CallView& call) {
  return {{{call.integer("bins", 100)}, first(call).dtype}};
}
Texts histogram_text(const CallView& call) {
  const size_t rank = rank_of(call);
  return {annotation({letters(rank, std::vector<bool>(rank, true), "^")},
                     {{std::to_string(call.integer("bins", 100))}})};
}

// --- parts
// ----------------------------------------------------------------------------------------

// The addend of a mean: the local sum divided by what all devices count.
std::optional<std::vector<Ref>> mean_part(Part& p) {
  if (p.placed.addends().empty()) return std::nullopt;
  const bool some = p.find("dim") != nullptr;
  const Ref total = p.apply(some ? "aten::sum.dim_IntList" : "aten::sum", p.args()).front();
  const Shape& whole = p.placed.whole("self");
  double n = 1;
  for (const int64_t d : p.dims("dim")) n *= static_cast<double>(whole[static_cast<size_t>(d)]);
  return {{p.grad("aten::div.Scalar", total, n)}};
}

}  // namespace

void add_reductions(Records& records) {
  // --- reductions: a sum may be split along what it sums ---
  records.add({"aten::sum", "aten::nansum"}, {.infer = sum, .annotations = summed});
  records.add({"aten::prod"}, {.infer = sum, .annotations = frozen_axes});
  records.add({"aten::mean"}, {.infer = mean, .annotations = summed});
  records.add({"aten::nanmean"}, {.infer = mean, .annotations = frozen_axes});
  records.add({"aten::amax", "aten::amin", "aten::max", "aten::min", "aten::median"},
              {.infer = extremum, .annotations = frozen_axes});
  records.add({"aten::max.dim", "aten::min.dim", "aten::median.dim"},
              {.infer = extremum_and_position, .annotations = frozen_axes});
  records.add({"aten::argmax", "aten::argmin"},
              {.infer = position, .annotations = frozen_axes, .constant = true});
  records.add({"aten::any", "aten::all"},
              {.infer = truth, .annotations = frozen_axes, .constant = true});
  records.add({"aten::count_nonzero"},
              {.infer = count_nonzero, .annotations = summed, .constant = true});
  records.add({"aten::norm", "aten::linalg_vector_norm"},
              {.infer = norm, .annotations = frozen_axes});
  records.add({"aten::logsumexp"},
              {.infer = log_sum_exp, .annotations = frozen_axes, .flops = softmax_flops});
  records.add({"aten::var", "aten::std"}, {.infer = variance, .annotations = frozen_axes});
  records.add({"aten::var_mean", "aten::std_mean"},
              {.infer = variance_and_mean, .annotations = frozen_axes});

  // --- along one axis ---
  records.add({"aten::cumsum", "aten::cumprod"},
              {.infer = cumulative, .annotations = frozen_along});
  records.add({"aten::softmax", "aten::log_softmax", "aten::_safe_softmax"},
              {.infer = softmax, .annotations = frozen_along, .flops = softmax_flops});
  records.add({"aten::_softmax", "aten::_log_softmax"},
              {.infer = raw_softmax, .annotations = frozen_along, .flops = softmax_flops});
  records.add({"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"},
              {.infer = softmax_backward, .annotations = frozen_along, .flops = softmax_flops});
  records.add({"aten::sort"}, {.infer = sorted, .annotations = frozen_along});
  records.add({"aten::argsort"},
              {.infer = sorted_positions, .annotations = frozen_along, .constant = true});
  records.add({"aten::topk"}, {.infer = top_k, .annotations = top_k_text});
  records.add({"aten::diff"}, {.infer = diff, .annotations = diff_text});
  records.add({"aten::histc"},
              {.infer = histogram, .annotations = histogram_text, .constant = true});

  records.set({"aten::softmax", "aten::log_softmax", "aten::sum", "aten::mean", "aten::cumsum"},
              [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::mean"}, [](Record& r) {
    r.assisted = [](const CallView&, const annotate::Split& split) { return makes_addends(split); };
    r.part = mean_part;
  });

  records.examples(
      "sum",
      "{ f(4, 6) }, { f(4, 6), { 0 } }, { f(4, 6, 2), { -1, 0 }, true }, { b(4, 6), { 1 } }, { "
      "i(9, 4) }, { f(4, 6), { 1 }, false, { dtype = 'float32' }, tolerance = 1e-5 }");
  records.examples("nansum", "{ f(4, 6), { 0 } }");
  records.examples("prod", "{ f(4, 6) }, { f(4, 6), 0 }, { i(9, 4, 6), 1, true }");
  records.examples("mean nanmean", "{ f(4, 6) }, { f(4, 6), { 1 }, true }");
  records.examples("amax amin", "{ f(4, 6), { 0 } }, { f(4, 6), { 0, 1 }, true }, { i(9, 4), {} }");
  records.examples("max min median", "{ f(4, 6) }");
  records.examples("max.dim",
                   "{ op = 'max.dim', f(4, 6), 1 }, { op = 'max.dim', f(4, 6), 0, true }");
  records.examples("min.dim",
                   "{ op = 'min.dim', f(4, 6), 1 }, { op = 'min.dim', f(4, 6), 0, true }");
  records.examples("median.dim", "{ op = 'median.dim', f(4, 6), 1 }");
  records.examples("argmax argmin", "{ f(4, 6) }, { f(4, 6), 1 }, { f(4, 6), 0, true }");
  records.examples("any all", "{ b(4, 6) }, { b(4, 6), 1 }, { i(2, 4, 6), 0, true }");
  records.examples("count_nonzero", "{ b(4, 6) }, { i(2, 4, 6), 1 }");
  records.examples("norm", "{ f(4, 6) }, { op = 'norm.ScalarOpt_dim', f(4, 6), 2, { 1 }, true }");
  records.examples("linalg_vector_norm", "{ f(4, 6) }, { f(4, 6), 2, { 1 } }");
  records.examples("logsumexp", "{ f(4, 6), { 1 } }, { f(4, 6), { 0, 1 }, true }");
  records.examples(
      "var std var_mean std_mean",
      "{ f(4, 6), { 1 } }, { f(4, 6) }, { f(4, 6), { 0 }, { correction = 0, keepdim = true } }");
  records.examples("cumsum cumprod", "{ f(4, 6), 1 }, { i(9, 4), 0 }, { b(4, 6), -1 }");
  records.examples("softmax log_softmax _safe_softmax", "{ f(4, 6), 1 }, { f(2, 4, 6), 0 }");
  records.examples("_softmax _log_softmax", "{ f(4, 6), 1, false }");
  records.examples("_softmax_backward_data _log_softmax_backward_data",
                   "{ f(4, 6), pos(4, 6), 1, 'float64' }");
  records.examples("sort argsort", "{ f(4, 6) }, { f(4, 6), 0, true }");
  records.examples("topk", "{ f(4, 6), 3 }, { f(4, 6), 2, 0 }");
  records.examples("diff", "{ f(4, 6) }, { n = 4, f(4, 6), 1, 0, f(2, 6) }");
  records.examples("histc", "{ f(24), 5, -2, 2 }");
}

}  // namespace nns::operators
