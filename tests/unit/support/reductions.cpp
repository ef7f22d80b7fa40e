// Reductions, scans and orderings.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

Array finish(const Call& c, Array kept, const Shape& dims) {
  return c.boolean("keepdim") ? kept : drop(kept, dims);
}

// Joins over "dim", or everything.
template <class F>
Operator folding(double start, F f) {
  return [=](const Call& c) {
    const Array x = c.in("self");
    const Shape dims = c.dims("dim", x.rank());
    return Results{finish(c, fold(x, dims, start, f), dims)};
  };
}

double length(const Array& x, const Shape& dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(x.shape[static_cast<size_t>(d)]);
  return n;
}
Array mean_of(const Array& x, const Shape& dims) {
  const double n = length(x, dims);
  return map(fold(x, dims, 0, std::plus<>()), [n](double s) { return s / n; });
}
Array variance_of(const Call& c, const Array& x, const Shape& dims) {
  const double less = c.has("correction") ? c.real("correction") : c.boolean("unbiased", true);
  const double n = length(x, dims) - less;
  const Array d = zip(x, mean_of(x, dims), std::minus<>());
  return map(fold(zip(d, d, std::multiplies<>()), dims, 0, std::plus<>()),
             [n](double s) { return s / n; });
}

Results mean(const Call& c) {
  const Array x = c.in("self");
  const Shape dims = c.dims("dim", x.rank());
  return {finish(c, mean_of(x, dims), dims)};
}
Results variance(const Call& c) {
  const Array x = c.in("self");
  const Shape dims = c.dims("dim", x.rank());
  return {finish(c, variance_of(c, x, dims), dims)};
}
Results deviation(const Call& c) {
  return {map(variance(c)[0], [](double v) { return std::sqrt(v); })};
}
Results variance_and_mean(const Call& c) {
  return {variance(c)[0], mean(c)[0]};
}

// Values and places along one dimension in the order of `before`; the first n of them.
Results ordered(const Array& x, size_t d, int64_t n,
                const std::function<bool(double, double)>& before) {
  Shape shape = x.shape;
  shape[d] = n;
  Array values = Array::filled(shape), places = Array::filled(shape, 0, DType::i64);
  Shape rows = x.shape;
  rows[d] = 1;
  each(rows, [&](Index i) {
    std::vector<int64_t> order(static_cast<size_t>(x.shape[d]));
    std::iota(order.begin(), order.end(), 0);
    const auto element = [&](int64_t k) {
      Index at = i;
      at[d] = k;
      return x.at(at);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return before(element(a), element(b)); });
    for (int64_t k = 0; k < n; ++k) {
      i[d] = k;
      values.at(i) = element(order[static_cast<size_t>(k)]);
      places.at(i) = static_cast<double>(order[static_cast<size_t>(k)]);
    }
  });
  return {values, places};
}

Operator extreme_along(bool largest) {
  return [=](const Call& c) {
    const Array x = c.in("self");
    const size_t d = c.dim("dim", x.rank());
    const auto before = [=](double a, double b) { return largest ? a > b : a < b; };
    Results both = ordered(x, d, 1, before);
    for (Array& a : both) a = finish(c, a, {static_cast<int64_t>(d)});
    return both;
  };
}

Array softmax_of(const Array& x, size_t d) {
  const Shape dims{static_cast<int64_t>(d)};
  const Array most = fold(x, dims, -HUGE_VAL, [](double a, double b) { return std::max(a, b); });
  const Array e = zip(x, most, [](double a, double b) { return std::exp(a - b); });
  return zip(e, fold(e, dims, 0, std::plus<>()), std::divides<>());
}
Results softmax(const Call& c) {
  const Array x = c.in("self");
  return {softmax_of(x, c.dim("dim", x.rank()))};
}
Results safe_softmax(const Call& c) {  // a row of -∞ gives zeros
  return {map(softmax(c)[0], [](double p) { return std::isnan(p) ? 0 : p; })};
}
Results log_softmax(const Call& c) {
  return {map(softmax(c)[0], [](double p) { return std::log(p); })};
}
// p (g - Σ g p)
Results softmax_backward(const Call& c) {
  const Array g = c.in("grad_output"), p = c.in("output");
  const Shape dims{static_cast<int64_t>(c.dim("dim", p.rank()))};
  const Array along = fold(zip(g, p, std::multiplies<>()), dims, 0, std::plus<>());
  return {zip(p, zip(g, along, std::minus<>()), std::multiplies<>())};
}
// g - p Σ g
Results log_softmax_backward(const Call& c) {
  const Array g = c.in("grad_output"), y = c.in("output");
  const Shape dims{static_cast<int64_t>(c.dim("dim", y.rank()))};
  const Array p = map(y, [](double v) { return std::exp(v); });
  return {zip(g, zip(p, fold(g, dims, 0, std::plus<>()), std::multiplies<>()), std::minus<>())};
}

Results logsumexp(const Call& c) {
  const Array x = c.in("self");
  const Shape dims = c.dims("dim", x.rank());
  const Array e = map(x, [](double v) { return std::exp(v); });
  return {
      finish(c, map(fold(e, dims, 0, std::plus<>()), [](double s) { return std::log(s); }), dims)};
}

Results cumsum(const Call& c) {
  const Array x = copy(c.in("self"));
  if (x.rank() == 0) return {x};
  const size_t d = c.dim("dim", x.rank());
  each(x.shape, [&](const Index& i) {
    if (i[d] == 0) return;
    Index before = i;
    --before[d];
    x.at(i) += x.at(before);
  });
  return {x};
}

Results norm(const Call& c) {
  const Array x = c.in("self");
  const double p = c.real(c.find("ord") != nullptr ? "ord" : "p", 2);
  const Shape dims = c.dims("dim", x.rank());
  if (std::isinf(p))
    return {finish(c, fold(x, dims, 0, [](double a, double b) { return std::max(a, std::abs(b)); }),
                   dims)};
  const Array powers = map(x, [p](double v) { return std::pow(std::abs(v), p); });
  return {finish(
      c, map(fold(powers, dims, 0, std::plus<>()), [p](double s) { return std::pow(s, 1 / p); }),
      dims)};
}

Operator place_of_extreme(bool largest) {
  return [=](const Call& c) {
    Array x = c.in("self");
    const bool flat = !c.has("dim");
    if (flat) x = reshape(x, {x.count()});
    const size_t d = flat ? 0 : c.dim("dim", x.rank());
    const auto before = [=](double a, double b) { return largest ? a > b : a < b; };
    return Results{finish(c, ordered(x, d, 1, before)[1], {static_cast<int64_t>(d)})};
  };
}

}  // namespace

void add_reductions(Operators& all) {
  const auto most = [](double a, double b) { return std::max(a, b); };
  const auto least = [](double a, double b) { return std::min(a, b); };
  all["aten::sum"] = folding(0, std::plus<>());
  all["aten::mean"] = mean;
  all["aten::amax"] = all["aten::max"] = folding(-HUGE_VAL, most);
  all["aten::amin"] = all["aten::min"] = folding(HUGE_VAL, least);
  all["aten::max.dim"] = extreme_along(true);
  all["aten::min.dim"] = extreme_along(false);
  all["aten::var"] = variance;
  all["aten::std"] = deviation;
  all["aten::var_mean"] = variance_and_mean;
  all["aten::topk"] = [](const Call& c) {
    const Array x = c.in("self");
    const bool largest = c.boolean("largest", true);
    return ordered(x, c.dim("dim", x.rank(), -1), c.integer("k"),
                   [=](double a, double b) { return largest ? a > b : a < b; });
  };
  all["aten::sort"] = [](const Call& c) {
    const Array x = c.in("self");
    const size_t d = c.dim("dim", x.rank(), -1);
    const bool down = c.boolean("descending");
    return ordered(x, d, x.shape[d], [=](double a, double b) { return down ? a > b : a < b; });
  };
  all["aten::argmax"] = place_of_extreme(true);
  all["aten::argmin"] = place_of_extreme(false);
  all["aten::any"] = folding(0, [](double a, double b) { return double(a != 0 || b != 0); });
  all["aten::all"] = folding(1, [](double a, double b) { return double(a != 0 && b != 0); });
  all["aten::logsumexp"] = logsumexp;
  all["aten::cumsum"] = cumsum;
  all["aten::softmax"] = all["aten::_softmax"] = softmax;
  all["aten::_safe_softmax"] = safe_softmax;
  all["aten::log_softmax"] = all["aten::_log_softmax"] = log_softmax;
  all["aten::_softmax_backward_data"] = softmax_backward;
  all["aten::_log_softmax_backward_data"] = log_softmax_backward;
  all["aten::norm"] = all["aten::linalg_vector_norm"] = norm;
}

}  // namespace nns::test
