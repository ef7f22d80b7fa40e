// Derivatives of losses.
#include <algorithm>

#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

// --- classification
// -------------------------------------------------------------------------------

// nll_loss of [N, C] or [C] scores, or of [N, C, d…] ones through the two-dimensional kernel.
bool nll(Forward& f) {
  if (!f.training()) return false;
  const Shape shape = f.shape("self");
  Ref scores = f.in("self"), target = f.in("target");
  const bool spatial = shape.size() > 2;
  if (spatial && shape.size() != 4) {
    Shape flat = {shape[0], shape[1], 1, 1};
    for (size_t i = 2; i < shape.size(); ++i) flat[3] *= shape[i];
    scores = f.grad_call("aten::reshape", scores, flat);
    target = f.e.reshape(target, {flat[0], 1, flat[3]});
  }
  Ref loss =
      f.grad_call(spatial ? "aten::nll_loss2d_forward" : "aten::nll_loss_forward", scores, target,
                  f.in("weight"), f.integer("reduction", kMean), f.integer("ignore_index", -100));
  if (f.integer("reduction", kMean) == kNone && f.e.shape(loss) != f.shape("target"))
    loss = f.grad_call("aten::reshape", loss, f.shape("target"));
  f.result(loss);
  return true;
}

void nll_back(B& b) {
  const bool spatial = b.op() == "aten::nll_loss2d_forward";
  // The kernel lays the gradient out as the scores are, but takes dense memory only.
  const Ref scores = spatial ? b("aten::contiguous", b.in("self")) : b.in("self");
  b.give("self", b(spatial ? "aten::nll_loss2d_backward" : "aten::nll_loss_backward", b.grad(),
                   scores, b.in("target"), b.in("weight"), b.integer("reduction"),
                   b.integer("ignore_index"), b.out(1)));
}

// Σ over classes of -w log p, averaged with the targets' own weights: what label smoothing adds.
Ref smooth_part(Forward& f, Ref log_p, int64_t classes_dim) {
  const int64_t reduction = f.integer("reduction", kMean);
  const Shape shape = f.e.shape(log_p), target_shape = f.shape("target");
  Ref weighted = log_p;
  if (f.has("weight")) {
    Shape to(shape.size(), 1);
    to[static_cast<size_t>(classes_dim)] = shape[static_cast<size_t>(classes_dim)];
    weighted = f.grad_call("aten::mul.Tensor", log_p, f.e.reshape(f.in("weight"), to));
  }
  Ref loss = f.grad_call("aten::neg",
                         f.grad_call("aten::sum.dim_IntList", weighted, Shape{classes_dim}, false));
  const Ref ignored = f("aten::eq.Scalar", f.in("target"), f.integer("ignore_index", -100));
  loss = f.grad_call("aten::masked_fill.Scalar", loss, ignored, 0.0);
  if (reduction == kNone) return loss;
  loss = f.grad_call("aten::sum", loss);
  if (reduction == kSum) return loss;
  const Ref kept = f("aten::logical_not", ignored);
  Ref count;
  if (f.has("weight")) {
    const Ref safe = f("aten::masked_fill.Scalar", f.in("target"), ignored, 0.0);
    const Ref picked =
        f("aten::index_select", f.in("weight"), 0, f.e.reshape(safe, {numel(target_shape)}));
    count = f("aten::sum",
              f("aten::masked_fill.Scalar", f.e.reshape(picked, target_shape), ignored, 0.0));
  } else {
    count = f.e.cast(f("aten::sum", kept), f.e.dtype(log_p));
  }
  return f.grad_call("aten::div.Tensor", loss, count);
}

bool cross_entropy(Forward& f) {
  const Shape shape = f.shape("self");
  if (!f.training()) return false;
  const int64_t classes_dim = shape.size() == 1 ? 0 : 1;
  const int64_t reduction = f.integer("reduction", kMean);
  const double smoothing = f.real("label_smoothing", 0);
  const Ref log_p = f.grad_call("aten::log_softmax.int", f.in("self"), classes_dim);
  const auto classes = static_cast<double>(shape[static_cast<size_t>(classes_dim)]);

  if (is_floating(f.type("target").dtype)) {  // probabilities
    Ref target = f.in("target");
    if (smoothing > 0) {
      target = f.grad_call("aten::mul.Scalar", target, 1 - smoothing);
      target = f.grad_call("aten::add.Scalar", target, smoothing / classes);
    }
    Ref product = f.grad_call("aten::mul.Tensor", log_p, target);
    if (f.has("weight")) {
      Shape to(shape.size(), 1);
      to[static_cast<size_t>(classes_dim)] = shape[static_cast<size_t>(classes_dim)];
      product = f.grad_call("aten::mul.Tensor", product, f.e.reshape(f.in("weight"), to));
    }
    Ref loss = f.grad_call(
        "aten::neg", reduction == kNone
                         ? f.grad_call("aten::sum.dim_IntList", product, Shape{classes_dim}, false)
                         : f.grad_call("aten::sum", product));
    if (reduction == kMean)
      loss = f.grad_call("aten::div.Scalar", loss, static_cast<double>(numel(shape)) / classes);
    f.result(loss);
    return true;
  }
  Ref loss = f.grad_call("aten::nll_loss_nd", log_p, f.in("target"), f.in("weight"), reduction,
                         f.integer("ignore_index", -100));
  if (smoothing > 0) {
    const Ref smooth = smooth_part(f, log_p, classes_dim);
    loss = f.grad_call("aten::add.Tensor", f.grad_call("aten::mul.Scalar", loss, 1 - smoothing),
                       f.grad_call("aten::mul.Scalar", smooth, smoothing / classes));
  }
  f.result(loss);
  return true;
}

// --- regression
// -----------------------------------------------------------------------------------

// The element-wise slope scaled as the reduction asks.
Ref spread(B& b, const Shape& shape) {
  const Ref g = b.grad();
  if (b.integer("reduction", kMean) != kMean) return g;
  const auto n = static_cast<double>(numel(shape));
  return b("aten::div.Scalar", g, n);
}

Shape broadcast_shape(B& b) {
  Shape a = b.shape("self"), t = b.shape("target");
  if (a.size() < t.size()) std::swap(a, t);
  const size_t shift = a.size() - t.size();
  for (size_t i = 0; i < t.size(); ++i)
    if (a[i + shift] == 1) a[i + shift] = t[i];
  return a;
}

void give_both(B& b, Ref slope) {
  b.give("self", slope);
  if (b.needs("target")) b.give("target", b.e.neg(slope));
}

void mse(B& b) {
  const Ref g = b.e.mul(spread(b, broadcast_shape(b)), 2);
  give_both(b, b.e.mul(b.e.sub(b.in("self"), b.in("target")), g));
}
void l1(B& b) {
  const Ref g = spread(b, broadcast_shape(b));
  give_both(b, b.e.mul(b("aten::sign", b.e.sub(b.in("self"), b.in("target"))), g));
}
// Quadratic within ±width, linear outside; slope at the border is `height`.
void huber(B& b, double width, double height) {
  const Ref g = spread(b, broadcast_shape(b));
  const Ref d = b.e.sub(b.in("self"), b.in("target"));
  if (width == 0) return give_both(b, b.e.mul(b("aten::sign", d), g));
  const Ref cut = b("aten::clamp", d, -width, width);
  give_both(b, b.e.mul(b.e.mul(cut, height / width), g));
}

void kl_div(B& b) {
  const Ref g = b.e.expand(spread(b, broadcast_shape(b)), broadcast_shape(b));
  const Ref x = b.in("self"), t = b.in("target");
  if (b.boolean("log_target")) {  // e^t (t - x)
    const Ref p = b("aten::exp", t);
    if (b.needs("self")) b.give("self", b.e.neg(b.e.mul(p, g)));
    if (b.needs("target")) b.give("target", b.e.mul(b.e.mul(p, b.e.add(b.e.sub(t, x), 1)), g));
    return;
  }
  if (b.needs("self")) b.give("self", b.e.neg(b.e.mul(t, g)));  // t (log t - x)
  if (b.needs("target")) {
    // At 0 the slope is -∞, and autograd's not a number; here it is 0.
    const Ref slope = b.e.mul(b.e.add(b.e.sub(b("aten::log", t), x), 1), g);
    b.give("target", b("aten::masked_fill.Scalar", slope, b("aten::eq.Scalar", t, 0.0), 0.0));
  }
}

// --- binary
// ---------------------------------------------------------------------------------------

void bce(B& b) {
  const Ref x = b.in("self"), t = b.in("target"), g = b.grad();
  if (b.needs("self"))
    b.give("self", b("aten::binary_cross_entropy_backward", g, x, t, b.in("weight"),
                     b.integer("reduction", kMean)));
  if (b.needs("target")) {
    const Ref low = b("aten::log", b("aten::rsub.Scalar", x, 1.0));
    Ref slope = b.e.mul(b.e.sub(low, b("aten::log", x)), spread(b, broadcast_shape(b)));
    if (b.has("weight")) slope = b.e.mul(slope, b.in("weight"));
    b.give("target", slope);
  }
}

// (1 - t) x + (1 + (w - 1) t) log(1 + e^-x), w the weight of positives
void bce_with_logits(B& b) {
  const Ref x = b.in("self"), t = b.in("target");
  Ref g = spread(b, b.shape("self"));
  if (b.has("weight")) g = b.e.mul(g, b.in("weight"));
  if (!b.has("pos_weight")) {
    if (b.needs("self")) b.give("self", b.e.mul(b.e.sub(b("aten::sigmoid", x), t), g));
    if (b.needs("target")) b.give("target", b.e.neg(b.e.mul(x, g)));
    return;
  }
  const Ref w = b.in("pos_weight");
  if (b.needs("self")) {  // (pt + 1 - t) σ(x) - pt, pt = w t
    const Ref pt = b.e.mul(w, t);
    const Ref lift = b.e.add(b.e.sub(pt, t), 1);
    b.give("self", b.e.mul(b.e.sub(b.e.mul(lift, b("aten::sigmoid", x)), pt), g));
  }
  if (b.needs("target")) {  // log σ(-x) - w log σ(x)
    const Ref low = b("aten::log_sigmoid", b.e.neg(x));
    const Ref high = b.e.mul(w, b("aten::log_sigmoid", x));
    b.give("target", b.e.mul(b.e.sub(low, high), g));
  }
}

}  // namespace

void add_loss_derivatives(Records& records) {
  records.derive("aten::cross_entropy_loss", expands(cross_entropy));
  records.derive("aten::nll_loss", expands(nll));
  records.derive("aten::nll_loss_nd", expands(nll));
  records.derive("aten::nll_loss_forward", gradient(nll_back));
  records.derive("aten::nll_loss2d_forward", gradient(nll_back));
  records.derive("aten::mse_loss", gradient(mse));
  records.derive("aten::l1_loss", gradient(l1));
  records.derive("aten::smooth_l1_loss", gradient([](B& b) { huber(b, b.real("beta", 1), 1); }));
  records.derive("aten::huber_loss",
                 gradient([](B& b) { huber(b, b.real("delta", 1), b.real("delta", 1)); }));
  records.derive("aten::kl_div", gradient(kl_div));
  records.derive("aten::binary_cross_entropy", gradient(bce));
  records.derive("aten::binary_cross_entropy_with_logits", gradient(bce_with_logits));
}

}  // namespace nns::operators
