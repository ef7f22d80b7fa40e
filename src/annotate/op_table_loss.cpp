// Rows of losses and their derivatives. A loss may be split along what it sums; the parts of a mean
// are sums that `lower` divides by what all devices count.
#include "annotate/rows.h"

namespace nns::annotate {
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
  const DType dtype = c.self->dtype;
  return {class_loss(call)[0], {{c.self->shape[0]}, dtype}, {{}, dtype}};
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

}  // namespace

std::vector<OpInfo> loss_rows() {
  Rows rows;
  rows.add({"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss2d", "aten::nll_loss_nd"},
           {.infer = class_loss, .annotations = class_loss_text, .flops = loss_flops});
  rows.add({"aten::nll_loss_forward", "aten::nll_loss2d_forward"},
           {.infer = class_loss_and_weight, .annotations = class_loss_text, .flops = loss_flops});
  rows.add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"},
           {.infer = class_backward, .annotations = class_backward_text, .flops = loss_flops});

  rows.add({"nnscaler::cross_entropy"},
           {.infer = row_loss, .annotations = row_loss_text, .flops = loss_flops});
  rows.add(
      {"nnscaler::cross_entropy_backward"},
      {.infer = row_loss_backward, .annotations = row_loss_backward_text, .flops = loss_flops});

  rows.add({"aten::mse_loss", "aten::l1_loss", "aten::smooth_l1_loss", "aten::huber_loss",
            "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits", "aten::kl_div",
            "aten::soft_margin_loss"},
           {.infer = loss, .annotations = loss_text, .flops = loss_flops});
  rows.add({"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward",
            "aten::binary_cross_entropy_backward"},
           {.infer = loss_backward, .annotations = loss_backward_text, .flops = loss_flops});

  rows.add({"aten::_assert_tensor_metadata"}, {.infer = nothing, .constant = true});
  return rows.take();
}

}  // namespace nns::annotate
