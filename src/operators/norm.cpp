// Records of normalisations. Statistics are taken over frozen axes; gradients of scale and shift
// are sums over the others.
#include "operators/family.h"

namespace nns::operators {
namespace {

using Names = std::vector<std::string_view>;

double norm_flops(const CallView& call) {
  return 8.0 * static_cast<double>(numel(first(call).shape));
}

// --- over the last axes --------------------------------------------------------------------------

// Number of leading axes; checks normalized_shape, weight and bias.
size_t leading(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const Shape shape = call.ints("normalized_shape");
  const bool fits = shape.size() <= input.shape.size() && !shape.empty() &&
                    std::equal(shape.rbegin(), shape.rend(), input.shape.rbegin());
  if (!fits)
    call.fail(fmt::format("normalized_shape {} of {}; expected its last sizes", to_string(shape),
                          to_string(input)));
  for (const auto name : Names{"weight", "bias"})
    if (const TensorType* t = call.maybe_tensor(name); t != nullptr && t->shape != shape)
      misfit(call, input, *t, fmt::format("a {} of shape {}", name, to_string(shape)));
  return input.shape.size() - shape.size();
}
Types layer_norm(const CallView& call) {
  leading(call);
  return {call.tensor("input")};
}
TensorType statistics(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const TensorType* weight = call.maybe_tensor("weight");
  const size_t lead = leading(call);
  TensorType stats{input.shape, weight != nullptr ? weight->dtype : input.dtype};
  std::fill(stats.shape.begin() + static_cast<long>(lead), stats.shape.end(), 1);
  return stats;
}
Types native_layer_norm(const CallView& call) {
  return {call.tensor("input"), statistics(call), statistics(call)};
}
// In float32 of 16-bit numbers.
TensorType wide_statistics(const CallView& call) {
  TensorType stats = statistics(call);
  if (stats.dtype == DType::bf16 || stats.dtype == DType::f16) stats.dtype = DType::f32;
  return stats;
}
Types fused_rms_norm(const CallView& call) {
  return {call.tensor("input"), wide_statistics(call)};
}
Types own_layer_norm(const CallView& call) {
  return {call.tensor("input"), wide_statistics(call), wide_statistics(call)};
}

// The sum first.
Types add_norm(const CallView& call) {
  const TensorType &input = call.tensor("input"), &addend = call.tensor("addend");
  if (input != addend) misfit(call, input, addend, "one type and shape");
  Types out = {input};
  const Types rest =
      call.base() == "nnscaler::add_rms_norm" ? fused_rms_norm(call) : own_layer_norm(call);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

// Gradients of input, weight (and bias), those masked off left out.
Types last_axes_backward(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const auto mask = call.bools("output_mask");
  const TensorType* weight = call.maybe_tensor("weight");
  const TensorType parameter{call.ints("normalized_shape"),
                             weight != nullptr ? weight->dtype : input.dtype};
  Types out = {mask.at(0) ? input : undefined_output(input.dtype)};
  for (size_t i = 1; i < mask.size(); ++i)
    out.push_back(mask[i] ? parameter : undefined_output(parameter.dtype));
  return out;
}

struct LastAxes {
  DimTexts input, parameter, stats;
};
LastAxes last_axes(const CallView& call, std::string_view mark) {
  const size_t lead = leading(call), rank = call.tensor("input").shape.size();
  LastAxes a;
  for (size_t i = 0; i < rank; ++i) {
    a.input.push_back(letter(i) + std::string(i < lead ? mark : "^"));
    a.stats.push_back(i < lead ? a.input.back() : "1");
    if (i >= lead) a.parameter.push_back(a.input.back());
  }
  return a;
}
void add_present(const CallView& call, const Names& names, const DimTexts& dims,
                 std::vector<DimTexts>& in) {
  for (const auto name : names)
    if (call.maybe_tensor(name) != nullptr) in.push_back(dims);
}
Texts layer_norm_text(const CallView& call) {
  const LastAxes a = last_axes(call, "");
  std::vector<DimTexts> in = {a.input}, out = {a.input};
  add_present(call, {"addend"}, a.input, in);
  if (in.size() > 1) out.push_back(a.input);  // the sum
  add_present(call, {"weight", "bias"}, a.parameter, in);
  out.resize(infer(call).size(), a.stats);
  return {annotation(in, out)};
}
Texts last_axes_backward_text(const CallView& call) {
  const LastAxes a = last_axes(call, "+");
  std::vector<DimTexts> in = {a.input, a.input}, out = {a.input};
  add_present(call, {"mean", "rstd"}, a.stats, in);
  add_present(call, {"weight", "bias"}, a.parameter, in);
  add_present(call, {"addend"}, a.input, in);
  const auto mask = call.bools("output_mask");
  out.resize(mask.size(), a.parameter);
  for (size_t i = 0; i < mask.size(); ++i)
    if (!mask[i]) out[i] = {"0"};
  return {annotation(in, out)};
}

// --- over batch and positions, a channel at a time -----------------------------------------------

int64_t channels(const CallView& call) {
  const TensorType& input = call.tensor("input");
  if (input.shape.size() < 2) call.fail(to_string(input) + "; expected [batch, channels, …]");
  for (const auto name : Names{"weight", "bias", "running_mean", "running_var"})
    if (const TensorType* t = call.maybe_tensor(name); t && t->shape != Shape{input.shape[1]})
      misfit(call, input, *t, fmt::format("a {} of shape [{}]", name, input.shape[1]));
  return input.shape[1];
}
bool is_training(const CallView& call) {
  return call.boolean("training", call.boolean("train", call.boolean("use_input_stats", true)));
}
Types batch_norm(const CallView& call) {
  channels(call);
  return {call.tensor("input")};
}
Types native_batch_norm(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const TensorType* weight = call.maybe_tensor("weight");
  const DType dtype = weight != nullptr ? weight->dtype : input.dtype;
  const Shape saved = {is_training(call) ? channels(call) : 0};
  Types out = {input, {saved, dtype}, {saved, dtype}};
  if (call.base() == "aten::_native_batch_norm_legit_functional")
    for (const auto name : Names{"running_mean", "running_var"}) out.push_back(call.tensor(name));
  return out;
}
Types channel_backward(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const auto mask = call.bools("output_mask");
  const TensorType parameter{{input.shape.at(1)}, input.dtype};
  Types out = {mask.at(0) ? input : undefined_output(input.dtype)};
  for (size_t i = 1; i < mask.size(); ++i)
    out.push_back(mask[i] ? parameter : undefined_output(input.dtype));
  return out;
}
// Channels are independent; batch and positions are frozen where a kernel takes statistics over
// them.
DimTexts channel_dims(const CallView& call, std::string_view mark) {
  DimTexts dims = letters(call.tensor("input").shape.size());
  for (size_t i = 0; i < dims.size(); ++i)
    if (i != 1) dims[i] += mark;
  return dims;
}
Texts batch_norm_text(const CallView& call) {
  const bool frozen = is_training(call) && call.base() != "aten::batch_norm";
  const DimTexts input = channel_dims(call, frozen ? "^" : "");
  std::vector<DimTexts> in = {input}, out = {input};
  add_present(call, {"weight", "bias", "running_mean", "running_var"}, {input[1]}, in);
  for (size_t i = 1; i < infer(call).size(); ++i)
    out.push_back({i < 3 && !is_training(call) ? "0" : input[1]});
  return {annotation(in, out)};
}
// Channels are independent, samples too but for the statistics that the call moves.
Texts instance_norm_text(const CallView& call) {
  DimTexts input = channel_dims(call, "^");
  if (!call.has("running_mean")) input[0] = letter(0);
  std::vector<DimTexts> in = {input};
  add_present(call, {"weight", "bias", "running_mean", "running_var"}, {input[1]}, in);
  return {annotation(in, {input})};
}
Texts channel_backward_text(const CallView& call) {
  const DimTexts input = channel_dims(call, is_training(call) ? "^" : "+");
  std::vector<DimTexts> in = {input, input}, out = {input};
  for (const auto name : Names{"weight", "running_mean", "running_var", "save_mean", "save_invstd"})
    if (const TensorType* t = call.maybe_tensor(name))
      in.push_back({t->shape == Shape{0} ? "0" : input[1]});
  const auto mask = call.bools("output_mask");
  out.resize(mask.size(), {input[1]});
  for (size_t i = 0; i < mask.size(); ++i)
    if (!mask[i]) out[i] = {"0"};
  return {annotation(in, out)};
}

// --- over groups of channels ---------------------------------------------------------------------

Types group_norm(const CallView& call) {
  const int64_t groups = call.integer("num_groups"), count = channels(call);
  if (groups < 1 || count % groups != 0)
    call.fail(fmt::format("{} groups of {}; expected a divisor of {}", groups,
                          to_string(call.tensor("input")), count));
  return {call.tensor("input")};
}
Texts group_norm_text(const CallView& call) {
  DimTexts input = letters(call.tensor("input").shape.size());
  for (size_t i = 1; i < input.size(); ++i) input[i] += "^";
  std::vector<DimTexts> in = {input};
  add_present(call, {"weight", "bias"}, {input[1]}, in);
  return {annotation(in, {input})};
}
Types native_group_norm(const CallView& call) {
  const TensorType& input = call.tensor("input");
  const TensorType stats{{call.integer("N"), call.integer("group")}, input.dtype};
  return {input, stats, stats};
}

}  // namespace

void add_norms(Records& records) {
  records.add({"aten::layer_norm", "aten::rms_norm"},
              {.infer = layer_norm, .annotations = layer_norm_text, .flops = norm_flops});
  records.add({"aten::native_layer_norm"},
              {.infer = native_layer_norm, .annotations = layer_norm_text, .flops = norm_flops});
  records.add({"nnscaler::layer_norm"},
              {.infer = own_layer_norm, .annotations = layer_norm_text, .flops = norm_flops});
  records.add({"aten::_fused_rms_norm", "nnscaler::rms_norm"},
              {.infer = fused_rms_norm, .annotations = layer_norm_text, .flops = norm_flops});
  records.add({"nnscaler::add_rms_norm", "nnscaler::add_layer_norm"},
              {.infer = add_norm, .annotations = layer_norm_text, .flops = norm_flops});
  records.add(
      {"aten::native_layer_norm_backward", "nnscaler::layer_norm_backward",
       "nnscaler::rms_norm_backward"},
      {.infer = last_axes_backward, .annotations = last_axes_backward_text, .flops = norm_flops});
  records.set({"nnscaler::rms_norm"}, [](Record& r) { r.of_sum = "nnscaler::add_rms_norm"; });
  records.set({"nnscaler::layer_norm"}, [](Record& r) { r.of_sum = "nnscaler::add_layer_norm"; });
  records.set({"nnscaler::rms_norm_backward", "nnscaler::layer_norm_backward"},
              [](Record& r) { r.addend = "addend"; });

  records.add({"aten::batch_norm"}, {.infer = batch_norm,
                                     .annotations = batch_norm_text,
                                     .flops = norm_flops,
                                     .mutates = {"running_mean", "running_var"}});
  records.add({"aten::instance_norm"}, {.infer = batch_norm,
                                        .annotations = instance_norm_text,
                                        .flops = norm_flops,
                                        .mutates = {"running_mean", "running_var"}});
  records.add({"aten::native_batch_norm", "aten::_native_batch_norm_legit"},
              {.infer = native_batch_norm,
               .annotations = batch_norm_text,
               .flops = norm_flops,
               .mutates = {"running_mean", "running_var"}});
  records.add(
      {"aten::_native_batch_norm_legit.no_stats", "aten::_native_batch_norm_legit_functional"},
      {.infer = native_batch_norm, .annotations = batch_norm_text, .flops = norm_flops});
  records.add(
      {"aten::native_batch_norm_backward"},
      {.infer = channel_backward, .annotations = channel_backward_text, .flops = norm_flops});

  records.add({"aten::group_norm"},
              {.infer = group_norm, .annotations = group_norm_text, .flops = norm_flops});
  records.add({"aten::native_group_norm"}, {.infer = native_group_norm, .flops = norm_flops});
  records.add({"aten::native_group_norm_backward"},
              {.infer = channel_backward, .flops = norm_flops});

  records.set({"aten::layer_norm"}, [](Record& r) { r.dense = Dense::always; });

  // The new content of running_mean and running_var stands behind the result.
  records.set({"aten::batch_norm", "aten::instance_norm"}, [](Record& r) {
    r.keeps = [](const CallView& call, size_t i, const HeldBy& held) -> std::optional<double> {
      const auto momentum = number_of(call, "momentum");
      if (i == 0 || !is_training(call) || !momentum) return std::nullopt;
      const auto before = held(i == 1 ? "running_mean" : "running_var");
      return before ? std::optional(*before * (1 - *momentum)) : std::nullopt;
    };
  });

  records.examples("layer_norm", "{ f(2, 4, 6), { 6 }, f(6), f(6) }, { f(2, 4, 6), { 4, 6 } }");
  records.examples("rms_norm", "{ f(2, 4, 6), { 6 }, f(6) }, { f(4, 6), { 6 } }");
  records.examples(
      "native_layer_norm",
      "{ f(2, 4, 6), { 6 }, f(6), f(6), 1e-5 }, { n = 5, f(4, 6), { 6 }, nil, nil, 1e-5 }");
  records.examples("_fused_rms_norm nnscaler::rms_norm", "{ f(2, 4, 6), { 6 }, f(6), 1e-5 }");
  records.examples("nnscaler::add_rms_norm", "{ f(2, 4, 6), f(2, 4, 6), { 6 }, f(6), 1e-5 }");
  records.examples("nnscaler::layer_norm",
                   "{ f(2, 4, 6), { 6 }, f(6), f(6), 1e-5 }, { n = 5, f(4, 6), { 6 }, nil, nil, "
                   "1e-5 }");
  records.examples("nnscaler::add_layer_norm",
                   "{ f(2, 4, 6), f(2, 4, 6), { 6 }, f(6), f(6), 1e-5 }");
  records.examples("nnscaler::layer_norm_backward",
                   "{ f(2, 4, 6), f(2, 4, 6), { 6 }, f(2, 4, 1), pos(2, 4, 1), f(6), f(6), { true, "
                   "true, true }, f(2, 4, 6) }");
  records.examples("nnscaler::rms_norm_backward",
                   "{ f(2, 4, 6), f(2, 4, 6), { 6 }, pos(2, 4, 1), f(6), { true, true } }, { n = "
                   "6, f(4, 6), f(4, 6), { 6 }, pos(4, 1), nil, { true, false } }");
  records.examples("native_layer_norm_backward",
                   "{ f(2, 4, 6), f(2, 4, 6), { 6 }, f(2, 4, 1), pos(2, 4, 1), f(6), f(6), { true, "
                   "true, true } }, { n = 8, f(4, 6), f(4, 6), { 6 }, f(4, 1), pos(4, 1), f(6), "
                   "nil, { true, true, false } }");
  records.examples("batch_norm",
                   "{ f(4, 6, 2, 2), f(6), f(6), f(6), pos(6), true, 0.1, 1e-5, false }, { f(4, 6, "
                   "2, 2), f(6), f(6), f(6), pos(6), false, 0.1, 1e-5, false }, { n = 9, f(4, 6, "
                   "2, 2), nil, nil, nil, nil, true, 0.1, 1e-5, false }");
  records.examples("instance_norm",
                   "{ f(4, 6, 2, 2), f(6), f(6), f(6), pos(6), true, 0.1, 1e-5, false }, { n = 9, "
                   "f(4, 6, 2, 2), f(6), f(6), nil, nil, true, 0.1, 1e-5, false }");
  records.examples("native_batch_norm _native_batch_norm_legit",
                   "{ f(4, 6, 2, 2), f(6), f(6), f(6), pos(6), true, 0.1, 1e-5 }, { f(4, 6, 2, 2), "
                   "f(6), f(6), f(6), pos(6), false, 0.1, 1e-5 }");
  records.examples("_native_batch_norm_legit.no_stats",
                   "{ f(4, 6, 2, 2), f(6), f(6), true, 0.1, 1e-5 }");
  records.examples("_native_batch_norm_legit_functional",
                   "{ f(4, 6, 2, 2), f(6), f(6), f(6), pos(6), true, 0.1, 1e-5 }");
  records.examples("native_batch_norm_backward",
                   "{ n = 10, f(4, 6, 2, 2), f(4, 6, 2, 2), f(6), nil, nil, f(6), pos(6), true, "
                   "1e-5, { true, true, true } }, { n = 10, f(4, 6, 2, 2), f(4, 6, 2, 2), f(6), "
                   "f(6), pos(6), nil, nil, false, 1e-5, { true, true, true } }");
  records.examples("group_norm", "{ f(4, 6, 2, 2), 3, f(6), f(6) }");
  records.examples("native_group_norm", "{ f(4, 6, 2, 2), f(6), f(6), 4, 6, 4, 3, 1e-5 }");
  records.examples("native_group_norm_backward",
                   "{ f(4, 6, 2, 2), f(4, 6, 2, 2), f(4, 3), pos(4, 3), f(6), 4, 6, 4, 3, { true, "
                   "true, true } }");
}

}  // namespace nns::operators
