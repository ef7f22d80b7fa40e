// Losses by their definition.
#include <cmath>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

Results reduced(const Call& c, const Array& each_one) {
  const int64_t reduction = c.integer("reduction", 1);
  if (reduction == 0) return {each_one};
  double sum = 0;
  each(each_one.shape, [&](const Index& i) { sum += each_one.at(i); });
  return {Array::number(reduction == 1 ? sum / static_cast<double>(each_one.count()) : sum)};
}

template <class F>
Operator pairwise(F f) {
  return [f](const Call& c) {
    return reduced(
        c, zip(c.in("self"), c.in("target"), [&](double x, double t) { return f(c, x, t); }));
  };
}

// Calls f(index of scores, index of target, weight) for every target that counts.
void each_target(const Call& c, const std::function<void(Index, const Index&, double)>& f) {
  const Array target = c.in("target"), scores = c.in("self");
  each(target.shape, [&](const Index& i) {
    const auto label = static_cast<int64_t>(target.at(i));
    if (label == c.integer("ignore_index", -100)) return;
    Index at = i;
    at.insert(at.begin() + (scores.rank() == 1 ? 0 : 1), label);
    f(at, i, c.has("weight") ? c.in("weight").at({label}) : 1);
  });
}

Results nll(const Call& c) {
  const Array scores = c.in("self"), losses = Array::filled(c.in("target").shape);
  double total = 0, sum = 0;
  each_target(c, [&](const Index& at, const Index& i, double w) {
    losses.at(i) = -w * scores.at(at);
    total += w;
    sum += losses.at(i);
  });
  const int64_t reduction = c.integer("reduction", 1);
  if (reduction == 0) return {losses, Array::number(0)};
  return {Array::number(reduction == 1 ? sum / total : sum), Array::number(total)};
}
Results nll_backward(const Call& c) {
  const Array g = c.in("grad_output"), out = Array::filled(c.in("self").shape);
  const int64_t reduction = c.integer("reduction", 1);
  const double scale = reduction == 1 ? 1 / c.in("total_weight").item() : 1;
  each_target(c, [&](const Index& at, const Index& i, double w) {
    out.at(at) = -w * scale * (reduction == 0 ? g.at(i) : g.item());
  });
  return {out};
}

double huber(double d, double delta) {
  return std::abs(d) < delta ? 0.5 * d * d : delta * (std::abs(d) - 0.5 * delta);
}
double bce(double x, double t) {
  return -(t * std::log(x) + (1 - t) * std::log(1 - x));
}

Results weighted(const Call& c, Array losses) {
  if (c.has("weight")) losses = zip(losses, c.in("weight"), std::multiplies<>());
  return reduced(c, losses);
}

Results bce_with_logits(const Call& c) {
  const Array x = c.in("self"), t = c.in("target");
  const Array p = map(x, [](double v) { return 1 / (1 + std::exp(-v)); });
  Array yes = zip(t, p, [](double a, double b) { return -a * std::log(b); });
  if (c.has("pos_weight")) yes = zip(yes, c.in("pos_weight"), std::multiplies<>());
  const Array no = zip(t, p, [](double a, double b) { return -(1 - a) * std::log(1 - b); });
  return weighted(c, zip(yes, no, std::plus<>()));
}

}  // namespace

void add_losses(Operators& all) {
  for (const char* name : {"aten::nll_loss_forward", "aten::nll_loss2d_forward"}) all[name] = nll;
  for (const char* name : {"aten::nll_loss_nd", "aten::nll_loss"})
    all[name] = [](const Call& c) { return Results{nll(c)[0]}; };
  all["aten::cross_entropy_loss"] = [](const Call& c) {  // of indices, without smoothing
    const Array x = c.in("self");
    const Shape classes{x.rank() == 1 ? 0 : 1};
    const Array e = map(x, [](double v) { return std::exp(v); });
    const Array log_p = zip(e, fold(e, classes, 0, std::plus<>()),
                            [](double a, double b) { return std::log(a / b); });
    const std::vector<graph::NamedArg> args{{"self", graph::ValueRef{0}},
                                            {"target", graph::ValueRef{1}},
                                            {"reduction", c.integer("reduction", 1)},
                                            {"ignore_index", c.integer("ignore_index", -100)}};
    const Array target = c.in("target");
    return Results{nll(Call("aten::nll_loss_forward", args,
                            [&](int id) { return id == 0 ? log_p : target; }, {}))[0]};
  };
  for (const char* name : {"aten::nll_loss_backward", "aten::nll_loss2d_backward"})
    all[name] = nll_backward;
  all["aten::mse_loss"] =
      pairwise([](const Call&, double x, double t) { return (x - t) * (x - t); });
  all["aten::l1_loss"] = pairwise([](const Call&, double x, double t) { return std::abs(x - t); });
  all["aten::huber_loss"] =
      pairwise([](const Call& c, double x, double t) { return huber(x - t, c.real("delta", 1)); });
  all["aten::smooth_l1_loss"] = pairwise([](const Call& c, double x, double t) {
    const double beta = c.real("beta", 1);
    return beta == 0 ? std::abs(x - t) : huber(x - t, beta) / beta;
  });
  all["aten::kl_div"] = pairwise([](const Call& c, double x, double t) {
    return c.boolean("log_target") ? std::exp(t) * (t - x) : t * (std::log(t) - x);
  });
  all["aten::binary_cross_entropy"] = [](const Call& c) {
    return weighted(c, zip(c.in("self"), c.in("target"), bce));
  };
  all["aten::binary_cross_entropy_backward"] = [](const Call& c) {
    const Array x = c.in("self"), t = c.in("target");
    Array slope = zip(x, t, [](double a, double b) { return (a - b) / (a * (1 - a)); });
    if (c.has("weight")) slope = zip(slope, c.in("weight"), std::multiplies<>());
    const double n = c.integer("reduction", 1) == 1 ? static_cast<double>(x.count()) : 1;
    return Results{zip(slope, c.in("grad_output"), [n](double s, double g) { return s * g / n; })};
  };
  all["aten::binary_cross_entropy_with_logits"] = bce_with_logits;
}

}  // namespace nns::test
