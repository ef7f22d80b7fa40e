// Records of losses and their derivatives. A loss may be split along what it sums; the parts of a
// mean are sums that `lower` divides by what all devices count.
#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

int64_t reduction(const CallView& call) {
  const int64_t r = call.integer("reduction", kMean);
  if (r < kNone || r > kSum) call.fail(fmt::format("reduction {}; expected 0, 1 or 2", r));
  return r;
}
std::string mark_of(int64_t r) {
  return r == kNone ? "" : "+";
}
// Where nothing divides the parts of a mean anew.
std::string kernel_mark(int64_t r) {
  return r == kMean ? "^" : mark_of(r);
}

// --- classes -------------------------------------------------------------------------------------

// Scores [N, C, d…] (or [C]) and targets [N, d…]: class numbers, or probabilities shaped as scores.
struct Classes {
  const TensorType *self, *target, *weight;
  size_t axis = 0;  // of the classes
  bool probabilities = false;
};
Classes classes_of(const CallView& call) {
  Classes c{&call.tensor("self"), &call.tensor("target"), call.maybe_tensor("weight")};
  if (c.self->shape.empty()) call.fail(to_string(*c.self) + "; expected [batch, classes, …]");
  c.axis = c.self->shape.size() == 1 ? 0 : 1;
  c.probabilities = c.target->shape == c.self->shape && is_floating(c.target->dtype);
  Shape expected = c.self->shape;
  expected.erase(expected.begin() + static_cast<long>(c.axis));
  if (!c.probabilities && c.target->shape != expected)
    misfit(call, *c.self, *c.target, "targets of shape " + to_string(expected));
  if (!c.probabilities && c.target->dtype != DType::i64 && c.target->dtype != DType::u8)
    misfit(call, *c.self, *c.target, "class numbers as int64");
  if (c.weight != nullptr && c.weight->shape != Shape{c.self->shape[c.axis]})
    misfit(call, *c.self, *c.weight, fmt::format("a weight of shape [{}]", c.self->shape[c.axis]));
  return c;
}
Types class_loss(const CallView& call) {
  const Classes c = classes_of(call);
  if (reduction(call) != kNone) return {{{}, c.self->dtype}};
  Shape out = c.self->shape;
  out.erase(out.begin() + static_cast<long>(c.axis));
  return {{out, c.self->dtype}};
}
Types class_loss_and_weight(const CallView& call) {
  return {class_loss(call)[0], {{}, call.tensor("self").dtype}};
}
struct ClassDims {
  DimTexts self, target, weight;
};
ClassDims class_dims(const Classes& c, std::string_view mark, std::string_view classes = "^") {
  ClassDims d;
  for (size_t i = 0; i < c.self->shape.size(); ++i) {
    d.self.push_back(letter(i) + std::string(i == c.axis ? classes : mark));
    if (i != c.axis || c.probabilities) d.target.push_back(d.self.back());
  }
  d.weight = {d.self[c.axis]};
  return d;
}
Texts class_loss_text(const CallView& call) {
  const Classes c = classes_of(call);
  const int64_t r = reduction(call);
  // Scores of classes on several devices: only where a label has one class and all weigh alike.
  const bool apart = call.base() == "aten::cross_entropy_loss" && !c.probabilities && !c.weight;
  const ClassDims d =
      class_dims(c, infer(call).size() > 1 ? kernel_mark(r) : mark_of(r), apart ? "" : "^");
  std::vector<DimTexts> in = {d.self, d.target}, out;
  if (c.weight != nullptr) in.push_back(d.weight);
  DimTexts each = d.self;
  each.erase(each.begin() + static_cast<long>(c.axis));
  out.push_back(r == kNone ? each : DimTexts{});
  if (infer(call).size() > 1) out.push_back({});
  return {annotation(in, out)};
}
Types class_backward(const CallView& call) {
  classes_of(call);
  return {call.tensor("self")};
}
// total_weight holds the divisor of the mean, so each sample's gradient stands alone.
Texts class_backward_text(const CallView& call) {
  const Classes c = classes_of(call);
  const ClassDims d = class_dims(c, "");
  DimTexts each = d.self;
  each.erase(each.begin() + static_cast<long>(c.axis));
  std::vector<DimTexts> in = {call.tensor("grad_output").shape.empty() ? DimTexts{} : each, d.self,
                              d.target};
  if (c.weight != nullptr) in.push_back(d.weight);
  in.push_back({});
  return {annotation(in, {d.self})};
}

// --- classes, fused ------------------------------------------------------------------------------

// Rows [N, C] and class numbers; the loss, the log-sum-exp of every row and the divisor of the
// mean.
Classes rows_of(const CallView& call) {
  const Classes c = classes_of(call);
  if (c.self->shape.size() != 2 || c.probabilities)
    misfit(call, *c.self, *c.target, "[rows, classes] and class numbers [rows]");
  return c;
}
Types row_loss(const CallView& call) {
  const Classes c = rows_of(call);
  const bool narrow = c.self->dtype == DType::bf16 || c.self->dtype == DType::f16;
  const DType sums = narrow ? DType::f32 : c.self->dtype;
  return {class_loss(call)[0], {{c.self->shape[0]}, sums}, {{}, sums}};
}
Texts row_loss_text(const CallView& call) {
  const ClassDims d = class_dims(rows_of(call), kernel_mark(reduction(call)));
  const DimTexts loss = reduction(call) == kNone ? d.target : DimTexts{};
  return {annotation({d.self, d.target}, {loss, d.target, {}})};
}
Types row_loss_backward(const CallView& call) {
  return {*rows_of(call).self};
}
Texts row_loss_backward_text(const CallView& call) {
  const ClassDims d = class_dims(rows_of(call), "");
  const DimTexts grad = call.tensor("grad_output").shape.empty() ? DimTexts{} : d.target;
  return {annotation({grad, d.self, d.target, d.target, {}}, {d.self})};
}

// --- element by element --------------------------------------------------------------------------

Types loss(const CallView& call) {
  const Shape shape = broadcast_all(call, call.operands());
  const DType dtype = result_type({operand(call, "self"), operand(call, "target")});
  return {{reduction(call) == kNone ? shape : Shape{}, dtype}};
}
Texts loss_text(const CallView& call) {
  const Shape shape = broadcast_all(call, call.operands());
  const std::string mark = mark_of(reduction(call));
  std::vector<DimTexts> in;
  const auto name = [&](const Shape& own) {
    DimTexts dims;
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t at = i + shape.size() - own.size();
      dims.push_back(own[i] == 1 && shape[at] != 1 ? "1" : letter(at) + mark);
    }
    return dims;
  };
  for (const TensorType* t : call.operands()) in.push_back(name(t->shape));
  return {annotation(in, {reduction(call) == kNone ? name(shape) : DimTexts{}})};
}
Types loss_backward(const CallView& call) {
  const TensorType &self = call.tensor("self"), &target = call.tensor("target");
  return {{broadcast_all(call, {&self, &target}), self.dtype}};
}
// The gradient of a mean divides by the number of elements it sees: frozen.
Texts loss_backward_text(const CallView& call) {
  if (reduction(call) == kMean) return {};
  const Shape out = infer(call)[0].shape;
  std::vector<DimTexts> in;
  for (const TensorType* t : call.operands()) {
    DimTexts dims;
    for (size_t i = 0; i < t->shape.size(); ++i) {
      const size_t at = i + out.size() - t->shape.size();
      dims.push_back(t->shape[i] == 1 && out[at] != 1 ? "1" : letter(at));
    }
    in.push_back(dims);
  }
  return {annotation(in, {letters(out.size())})};
}
double loss_flops(const CallView& call) {
  return 10.0 * static_cast<double>(numel(call.tensor("self").shape));
}

Types nothing(const CallView&) {
  return {};
}

// --- parts
// ----------------------------------------------------------------------------------------

// How much the local labels count: one each, or the weight of their class.
Ref labels(Part& p, DType dtype) {
  const Ref target = p.in("target");
  const Ref ignored = p.e("aten::eq.Scalar", target, p.integer("ignore_index", -100));
  if (!p.has("weight")) return p.e.cast(p.e("aten::sum", p.e("aten::logical_not", ignored)), dtype);
  const Shape shape = p.e.shape(target);
  const Ref safe = p.e("aten::masked_fill.Scalar", target, ignored, int64_t{0});
  const Ref weights = p.e.reshape(
      p.e("aten::index_select", p.in("weight"), 0, p.e.reshape(safe, {numel(shape)})), shape);
  return p.e("aten::sum", p.e("aten::masked_fill.Scalar", weights, ignored, 0.0));
}

// The part of a mean over elements: the local sum divided by what all devices count.
std::optional<std::vector<Ref>> mean_of(Part& p,
                                        const std::function<Ref(Ref total, const Shape&)>& over) {
  const Shape ranks = p.placed.addends();
  if (ranks.empty() || reduction(p) != kMean) return std::nullopt;
  std::vector<NamedArg> sum = p.args();
  for (NamedArg& a : sum)
    if (a.name == "reduction") a.value = int64_t{kSum};
  return {{over(p.apply(p.op(), std::move(sum)).front(), ranks)}};
}
std::optional<std::vector<Ref>> loss_part(Part& p) {
  return mean_of(p, [&](Ref total, const Shape&) {
    Shape shape = p.placed.whole("self");
    if (const auto wide = broadcast(shape, p.placed.whole("target"))) shape = *wide;
    return p.grad("aten::div.Scalar", total, static_cast<double>(numel(shape)));
  });
}

// Cross entropy whose classes lie on several devices: log Σ exp by the greatest and the sum over
// all, and the score of the label from the device that has it. All devices get the whole loss.
std::optional<std::vector<Ref>> classes_apart(Part& p) {
  const int64_t dim = p.rank("self") == 1 ? 0 : 1;
  const Shape ranks = p.placed.ranks_of("self", [dim](int64_t d) { return d == dim; });
  if (ranks.empty()) return std::nullopt;
  const Ref scores = p.in("self"), target = p.in("target");
  const Ref top =
      p.e.call("aten::amax", {{"self", scores}, {"dim", Shape{dim}}, {"keepdim", true}}).front();
  const Ref most = p.plain_sum(top, ranks, "max");
  const Ref shifted = p.grad("aten::sub.Tensor", scores, most);
  const auto sum_of = [&](Ref x) {
    return p.summed(p.grad("aten::sum.dim_IntList", x, Shape{dim}, true), ranks, false);
  };
  const Ref log_sum = p.grad("aten::log", sum_of(p.grad("aten::exp", shifted)));
  const auto [positions, outside] =
      p.local_positions(p.e("aten::unsqueeze", target, dim), "self", dim);
  Ref own = p.grad("aten::gather", shifted, dim, positions, false);
  own = p.summed(p.grad("aten::masked_fill.Scalar", own, outside, 0.0), ranks, false);
  Ref loss = p.grad("aten::sub.Tensor", log_sum, own);
  if (const double smoothing = p.real("label_smoothing", 0); smoothing > 0) {
    const auto classes = static_cast<double>(p.placed.whole("self")[static_cast<size_t>(dim)]);
    const Ref even =
        p.grad("aten::sub.Tensor", p.grad("aten::mul.Scalar", log_sum, classes), sum_of(shifted));
    loss = p.grad("aten::add.Tensor", p.grad("aten::mul.Scalar", loss, 1 - smoothing),
                  p.grad("aten::mul.Scalar", even, smoothing / classes));
  }
  const Ref ignored = p.e("aten::eq.Scalar", target, p.integer("ignore_index", -100));
  loss = p.grad("aten::masked_fill.Scalar", p.grad("aten::reshape", loss, p.e.shape(target)),
                ignored, 0.0);
  const int64_t reduction = p.integer("reduction", kMean);
  if (reduction == kNone) return {{loss}};
  loss = p.grad("aten::sum", loss);
  if (reduction == kSum) return {{loss}};
  const Ref counted = labels(p, p.e.dtype(loss));
  const Shape shared = p.placed.addends();
  return {
      {p.grad("aten::div.Tensor", loss, shared.empty() ? counted : p.plain_sum(counted, shared))}};
}

// Means over labels count those that all devices have; over probabilities, samples.
std::optional<std::vector<Ref>> class_loss_part(Part& p) {
  return mean_of(p, [&](Ref total, const Shape& ranks) {
    if (!is_floating(p.type("target").dtype))
      return p.grad("aten::div.Tensor", total, p.plain_sum(labels(p, p.e.dtype(total)), ranks));
    const Shape& whole = p.placed.whole("self");
    const double samples =
        static_cast<double>(numel(whole)) / static_cast<double>(whole[whole.size() > 1]);
    return p.grad("aten::div.Scalar", total, samples);
  });
}
std::optional<std::vector<Ref>> cross_entropy_part(Part& p) {
  if (auto outs = classes_apart(p)) return outs;
  return class_loss_part(p);
}

bool cuts_mean(const CallView& call, const annotate::Split& split) {
  return makes_addends(split) && reduction(call) == kMean;
}
bool cuts_classes(const CallView& call, const annotate::Split& split) {
  return cuts_mean(call, split) || cuts_first(split, call.rank("self") == 1 ? 0 : 1);
}

}  // namespace

void add_losses(Records& records) {
  records.add(
      {"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss2d", "aten::nll_loss_nd"},
      {.infer = class_loss, .annotations = class_loss_text, .flops = loss_flops});
  records.add(
      {"aten::nll_loss_forward", "aten::nll_loss2d_forward"},
      {.infer = class_loss_and_weight, .annotations = class_loss_text, .flops = loss_flops});
  records.add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"},
              {.infer = class_backward, .annotations = class_backward_text, .flops = loss_flops});

  records.add({"nnscaler::cross_entropy"},
              {.infer = row_loss, .annotations = row_loss_text, .flops = loss_flops});
  records.add(
      {"nnscaler::cross_entropy_backward"},
      {.infer = row_loss_backward, .annotations = row_loss_backward_text, .flops = loss_flops});

  records.add({"aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss",
               "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits",
               "aten::kl_div", "aten::soft_margin_loss"},
              {.infer = loss, .annotations = loss_text, .flops = loss_flops});
  records.add({"aten::mse_loss_backward", "aten::smooth_l1_loss_backward",
               "aten::huber_loss_backward", "aten::binary_cross_entropy_backward"},
              {.infer = loss_backward, .annotations = loss_backward_text, .flops = loss_flops});

  records.add({"aten::_assert_tensor_metadata"}, {.infer = nothing, .constant = true});
  records.set({"aten::cross_entropy_loss"}, [](Record& r) { r.kind = Kind::class_loss; });

  records.set(
      {"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss2d", "aten::nll_loss_nd"},
      [](Record& r) {
        r.assisted = cuts_classes;
        r.part = class_loss_part;
      });
  records.set({"aten::cross_entropy_loss"}, [](Record& r) { r.part = cross_entropy_part; });
  records.set({"aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss",
               "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits",
               "aten::kl_div", "aten::soft_margin_loss"},
              [](Record& r) {
                r.assisted = cuts_mean;
                r.part = loss_part;
              });

  records.examples(
      "cross_entropy_loss",
      "reductions(function(r) return { f(6, 10), i(10, 6), pos(10), r }, { n = 4, f(2, 10, 4), "
      "i(10, 2, 4), nil, r }, { n = 4, f(6, 10), pos(6, 10), nil, r } end)");
  records.examples("nll_loss nll_loss_nd",
                   "reductions(function(r) return { f(6, 10), i(10, 6), pos(10), r } end)");
  records.examples(
      "nll_loss2d",
      "reductions(function(r) return { n = 4, f(2, 10, 4, 4), i(10, 2, 4, 4), nil, r } end)");
  records.examples("nll_loss_forward",
                   "reductions(function(r) return { f(6, 10), i(10, 6), pos(10), r, -100 }, { n = "
                   "5, f(6, 10), i(10, 6), nil, r, 3 } end)");
  records.examples(
      "nll_loss2d_forward",
      "reductions(function(r) return { n = 5, f(2, 10, 4, 4), i(10, 2, 4, 4), nil, r, -100 } end)");
  records.examples("nll_loss_backward",
                   "reductions(function(r, each) return { each(6), f(6, 10), i(10, 6), pos(10), r, "
                   "-100, T.scalar(5, 'float64') } end)");
  records.examples("nll_loss2d_backward",
                   "reductions(function(r, each) return { n = 7, each(2, 4, 4), f(2, 10, 4, 4), "
                   "i(10, 2, 4, 4), nil, r, -100, T.scalar(5, 'float64') } end)");
  records.examples("nnscaler::cross_entropy",
                   "reductions(function(r) return { f(6, 10), i(10, 6), r }, { f(6, 10), i(10, 6), "
                   "r, 3, 0.1 } end)");
  records.examples("nnscaler::cross_entropy_backward",
                   "reductions(function(r, each) return { each(6), f(6, 10), i(10, 6), f(6), "
                   "T.scalar(5, 'float64'), r, 3, 0.1 } end)");
  records.examples("mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div",
                   "reductions(function(r) return { f(4, 6), f(4, 6), r } end)");
  records.examples("binary_cross_entropy",
                   "reductions(function(r) return { n = 4, pos(4, 6), pos(4, 6), nil, r } end)");
  records.examples("binary_cross_entropy_with_logits",
                   "reductions(function(r) return { n = 5, f(4, 6), pos(4, 6), nil, nil, r }, { "
                   "f(4, 6), pos(4, 6), pos(6), pos(6), r } end)");
  records.examples("mse_loss_backward",
                   "reductions(function(r, each) return { each(4, 6), f(4, 6), f(4, 6), r } end)");
  records.examples(
      "smooth_l1_loss_backward huber_loss_backward",
      "reductions(function(r, each) return { each(4, 6), f(4, 6), f(4, 6), r, 1 } end)");
  records.examples("binary_cross_entropy_backward",
                   "reductions(function(r, each) return { n = 5, each(4, 6), pos(4, 6), pos(4, 6), "
                   "nil, r } end)");
  records.examples("_assert_tensor_metadata", "{ f(4, 6) }");
}

}  // namespace nns::operators
