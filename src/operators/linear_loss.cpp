// Records of the cross-entropy of a linear layer whose scores are never whole
// (src/ops/linear_loss.cpp). Rows and classes may lie on several devices.
#include <algorithm>

#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

enum Reduction { kNone = 0, kSum = 2 };

int64_t reduction(const CallView& call) {
  const int64_t r = call.integer("reduction", kSum);
  if (r != kNone && r != kSum)
    call.fail(fmt::format("reduction {}; expected 0 (none) or 2 (sum)", r));
  return r;
}

struct Operands {
  const TensorType *self, *weight, *target;
  DType sums = DType::f32;  // of what is made of scores
};
Operands operands(const CallView& call) {
  Operands o{&call.tensor("self"), &call.tensor("weight"), &call.tensor("target")};
  Shape lead = o.self->shape;
  if (lead.empty() || o.weight->shape.size() != 2 || o.weight->shape[1] != lead.back() ||
      o.weight->dtype != o.self->dtype || !is_floating(o.self->dtype))
    misfit(call, *o.self, *o.weight, "[..., width] and [classes, width] of one floating type");
  lead.pop_back();
  if (o.target->shape != lead || o.target->dtype != DType::i64)
    misfit(call, *o.self, *o.target, "class numbers as int64 of shape " + to_string(lead));
  const bool narrow = o.self->dtype == DType::bf16 || o.self->dtype == DType::f16;
  o.sums = narrow ? DType::f32 : o.self->dtype;
  return o;
}

Types loss(const CallView& call) {
  const Operands o = operands(call);
  return {{reduction(call) == kNone ? o.target->shape : Shape{}, o.sums}};
}
// Gradients of the operands that the last two flags of the mask ask for.
Types gradients(const CallView& call) {
  const Operands o = operands(call);
  const std::vector<bool> mask = call.bools("output_mask");
  if (mask.size() < 2) call.fail(fmt::format("{} flags; expected one an output", mask.size()));
  return {mask[mask.size() - 2] ? *o.self : undefined_output(o.self->dtype),
          mask.back() ? *o.weight : undefined_output(o.weight->dtype)};
}
Types loss_and_gradients(const CallView& call) {
  const Types of = gradients(call);
  return {{{}, operands(call).sums}, of[0], of[1]};
}
Types scores(const CallView& call) {
  const Operands o = operands(call);
  const TensorType row{o.target->shape, o.sums};
  return {row, row};
}

// Rows · width · classes, `products` of them.
double flops_of(const CallView& call, double products) {
  const Operands o = operands(call);
  return 2 * products * static_cast<double>(numel(o.self->shape)) *
         static_cast<double>(o.weight->shape[0]);
}
double forward_flops(const CallView& call) {
  return flops_of(call, 1);
}
double three_products(const CallView& call) {
  return flops_of(call, 3);
}

Texts text_of(const CallView& call, bool summed, std::string_view classes, size_t outputs) {
  const Operands o = operands(call);
  const size_t rank = o.target->shape.size();
  const DimTexts lead = letters(rank, std::vector<bool>(rank, summed), "+");
  DimTexts self = lead;
  self.push_back("width^");
  const DimTexts out = summed ? DimTexts{} : lead;
  return {annotation({self, {std::string(classes), "width^"}, lead},
                     std::vector<DimTexts>(outputs, out))};
}
Texts loss_text(const CallView& call) {
  return text_of(call, reduction(call) == kSum, "classes", 1);
}
Texts scores_text(const CallView& call) {
  return text_of(call, false, "classes^", 2);
}

bool cuts_classes(const CallView&, const annotate::Split& split) {
  const auto& axes = split.inputs.at(1).axes;
  return std::find(axes.begin(), axes.end(), 0) != axes.end();
}

// The loss of each row from its label's score and log Σ exp; its sum where that is asked for.
template <class Grad>
Ref finish(const Grad& grad, const CallView& call, Ref sums, Ref own, Ref ignored) {
  const Ref each =
      grad("aten::masked_fill.Scalar", grad("aten::sub.Tensor", sums, own), ignored, 0.0);
  return reduction(call) == kNone ? each : grad("aten::sum", each);
}

// In training a sum of all classes here is made with its gradients at once; else the derivative
// computes the scores again.
bool expand(Forward& f) {
  if (!f.training()) return false;
  if (reduction(f) == kSum) {
    const std::vector<bool> mask = {true, f.recording().requires_grad(f.in("self")),
                                    f.recording().requires_grad(f.in("weight"))};
    f.result(f.grad_call("nnscaler::linear_cross_entropy_gradients", f.in("self"), f.in("weight"),
                         f.in("target"), f.integer("ignore_index", -100), f.integer("chunk", 1024),
                         mask));
    return true;
  }
  const Ref ignored = f("aten::eq.Scalar", f.in("target"), f.integer("ignore_index", -100));
  const Ref safe = f("aten::masked_fill.Scalar", f.in("target"), ignored, int64_t{0});
  const auto outs =
      f.grad_calls("nnscaler::linear_scores", {to_arg(f.in("self")), to_arg(f.in("weight")),
                                               to_arg(safe), to_arg(f.integer("chunk", 1024))});
  const auto grad = [&](const char* op, auto... args) { return f.grad_call(op, args...); };
  f.result(finish(grad, f, outs[1], outs[0], ignored));
  return true;
}

// Classes on several devices: log Σ exp by the greatest of the devices' and a sum over all, the
// label's score from the device that has it. All devices get the whole loss.
std::optional<std::vector<Ref>> classes_apart(Part& p) {
  const Shape ranks = p.placed.ranks_of("weight", [](int64_t d) { return d == 0; });
  if (ranks.empty()) return std::nullopt;
  const auto [positions, outside] = p.local_positions(p.in("target"), "weight", 0);
  const auto outs = p.apply(
      "nnscaler::linear_scores",
      named_args("nnscaler::linear_scores", {to_arg(p.in("self")), to_arg(p.in("weight")),
                                             to_arg(positions), to_arg(p.integer("chunk", 1024))}));
  const Ref most = p.plain_sum(outs[1], ranks, "max");
  const Ref share = p.grad("aten::exp", p.grad("aten::sub.Tensor", outs[1], most));
  const Ref sums =
      p.grad("aten::add.Tensor", p.grad("aten::log", p.summed(share, ranks, false)), most);
  const Ref own = p.summed(p.grad("aten::masked_fill.Scalar", outs[0], outside, 0.0), ranks, false);
  const Ref ignored = p.e("aten::eq.Scalar", p.in("target"), p.integer("ignore_index", -100));
  const auto grad = [&](const char* op, auto... args) { return p.grad(op, args...); };
  return {{finish(grad, p, sums, own, ignored)}};
}

// The gradients are made: they wait for that of the sum.
void give_scaled(Backward& b) {
  const auto scaled = [&](Ref x) { return b.e.mul(x, b.e.cast(b.grad(), b.e.dtype(x))); };
  if (b.needs("self")) b.give("self", scaled(b.out(1)));
  if (b.needs("weight")) b.give("weight", scaled(b.out(2)));
}
void scores_back(Backward& b) {
  const std::vector<bool> wanted = {b.needs("self"), b.needs("weight")};
  const auto outs = b.e.emit("nnscaler::linear_scores_backward", b.grad_or_zeros(0),
                             b.grad_or_zeros(1), b.in("self"), b.in("weight"), b.in("target"),
                             b.out(1), b.integer("chunk", 1024), wanted);
  if (wanted[0]) b.give("self", outs[0]);
  if (wanted[1]) b.give("weight", outs[1]);
}

}  // namespace

void add_linear_losses(Records& records) {
  records.add({"nnscaler::linear_cross_entropy"}, {.infer = loss,
                                                   .annotations = loss_text,
                                                   .flops = forward_flops,
                                                   .kind = Kind::class_loss,
                                                   .autocast = {Cast::lower, Cast::lower},
                                                   .assisted = cuts_classes,
                                                   .part = classes_apart});
  records.add({"nnscaler::linear_cross_entropy_gradients"},
              {.infer = loss_and_gradients, .flops = three_products});
  records.add({"nnscaler::linear_scores"},
              {.infer = scores, .annotations = scores_text, .flops = forward_flops});
  records.add({"nnscaler::linear_scores_backward"}, {.infer = gradients, .flops = three_products});

  records.derive("nnscaler::linear_cross_entropy", expands(expand));
  records.derive("nnscaler::linear_cross_entropy_gradients", gradient(give_scaled));
  records.derive("nnscaler::linear_scores", gradient(scores_back));

  records.examples("nnscaler::linear_cross_entropy",
                   "{ n = 5, f(4, 6, 8), f(10, 8), i(10, 4, 6), 2, 3, 5 }, { n = 5, f(6, 8), "
                   "f(10, 8), i(10, 6), 0, 3, 4 }");
  records.examples("nnscaler::linear_cross_entropy_gradients",
                   "{ f(6, 8), f(10, 8), i(10, 6), 3, 4, { true, true, true } }");
  records.examples("nnscaler::linear_scores", "{ f(4, 6, 8), f(10, 8), i(10, 4, 6), 5 }");
  records.examples("nnscaler::linear_scores_backward",
                   "local x, w, y = f(6, 8), f(10, 8), i(10, 6) local own, sums = "
                   "nnscaler.linear_scores(x, w, y, 4) return { f(6), f(6), x, w, y, sums, 4, { "
                   "true, true } }");
}

}  // namespace nns::operators
