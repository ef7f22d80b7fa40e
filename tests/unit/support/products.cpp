// Matrix products and attention.
#include <cmath>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

Array transposed(const Array& x) {
  Shape order;
  for (size_t d = 0; d < x.rank(); ++d) order.push_back(static_cast<int64_t>(d));
  std::swap(order[x.rank() - 1], order[x.rank() - 2]);
  return permute(x, order);
}

// [..., m, k] · [..., k, n] with broadcast leading dimensions.
Array product(const Array& a, const Array& b) {
  const size_t ra = a.rank(), rb = b.rank();
  const Shape batch = broadcast_shape(Shape(a.shape.begin(), a.shape.end() - 2),
                                      Shape(b.shape.begin(), b.shape.end() - 2));
  const auto widened = [&](const Array& x) {
    Shape shape = batch;
    shape.insert(shape.end(), x.shape.end() - 2, x.shape.end());
    return expand(x, shape);
  };
  Shape shape = batch;
  shape.push_back(a.shape[ra - 2]);
  shape.push_back(b.shape[rb - 1]);
  const Array x = widened(a), y = widened(b), out = Array::filled(shape);
  const int64_t inner = a.shape[ra - 1];
  each(shape, [&](const Index& i) {
    Index at_x = i, at_y = i;
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      at_x.back() = k;
      at_y[at_y.size() - 2] = k;
      sum += x.at(at_x) * y.at(at_y);
    }
    out.at(i) = sum;
  });
  return out;
}

Array matmul(Array a, Array b) {
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a = unsqueeze(a, 0);
  if (column) b = unsqueeze(b, 1);
  Array out = product(a, b);
  if (column) out = select(out, out.rank() - 1, 0);
  if (row) out = select(out, out.rank() - (column ? 1 : 2), 0);
  return out;
}

Array rows_of(const Array& x) {
  return reshape(x, {-1, x.shape.back()});
}

Results linear(const Call& c) {
  const Array w = c.in("weight");
  Array out = w.rank() == 1 ? matmul(c.in("input"), w) : matmul(c.in("input"), transposed(w));
  if (c.has("bias")) out = zip(out, c.in("bias"), std::plus<>());
  return {out};
}

Results scaled_product(const Call& c, const char* a, const char* b) {
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  return {zip(matmul(c.in(a), c.in(b)), c.in("self"),
              [=](double p, double s) { return beta * s + alpha * p; })};
}

struct Attention {
  Array q, k, v, scores, weights, logsumexp;
  double scale;
};

Attention attention_of(const Call& c) {
  Attention a{c.in("query"), c.in("key"), c.in("value"), {}, {}, {}, 0};
  a.scale = c.real("scale", 1 / std::sqrt(static_cast<double>(a.q.shape.back())));
  Array scores = map(product(a.q, transposed(a.k)), [&](double s) { return s * a.scale; });
  if (c.boolean("is_causal"))
    each(scores.shape, [&](const Index& i) {
      if (i[i.size() - 1] > i[i.size() - 2]) scores.at(i) = -HUGE_VAL;
    });
  if (c.has("attn_mask")) scores = zip(scores, c.in("attn_mask"), std::plus<>());
  a.scores = scores;
  const Shape last{static_cast<int64_t>(scores.rank()) - 1};
  const Array most =
      fold(scores, last, -HUGE_VAL, [](double x, double y) { return std::max(x, y); });
  const Array e = zip(scores, most, [](double s, double m) { return std::exp(s - m); });
  const Array sums = fold(e, last, 0, std::plus<>());
  a.weights = zip(e, sums, std::divides<>());
  a.logsumexp = drop(zip(sums, most, [](double s, double m) { return std::log(s) + m; }), last);
  return a;
}

Results attention(const Call& c) {
  const Attention a = attention_of(c);
  return {product(a.weights, a.v), a.logsumexp};
}

// The weights from the logarithm that forward kept, as the kernel does it: of these keys and
// perhaps of others.
Results attention_backward(const Call& c) {
  const Attention a = attention_of(c);
  const Array g = c.in("grad_out"), kept = c.in("logsumexp");
  const Array weights = zip(a.scores, unsqueeze(kept, kept.rank()),
                            [](double s, double l) { return std::exp(s - l); });
  const Array dp = product(g, transposed(a.v));
  const Shape last{static_cast<int64_t>(dp.rank()) - 1};
  const Array along = fold(zip(g, c.in("out"), std::multiplies<>()), last, 0, std::plus<>());
  const Array ds = map(zip(zip(dp, along, std::minus<>()), weights, std::multiplies<>()),
                       [&](double s) { return s * a.scale; });
  return {product(ds, a.k), product(transposed(ds), a.q), product(transposed(weights), g)};
}

// Rows of dimension 2 from the call's start on, as many as `other` has.
Array rows_at(const Array& x, const Call& c) {
  const int64_t start = c.integer("start");
  return slice(x, 2, start, start + c.in("other").shape[2]);
}

Results join_attention(const Call& c) {
  const Array out = copy(c.in("self")), sums = copy(c.in("logsumexp"));
  const Array other = c.in("other"), other_sums = c.in("other_logsumexp");
  const Array rows = rows_at(out, c), old = copy(rows_at(sums, c));
  const Array both = zip(old, other_sums, [](double a, double b) {
    const double most = std::max(a, b);
    return most + std::log(std::exp(a - most) + std::exp(b - most));
  });
  const auto shared = [&](const Array& x, const Array& part) {
    return zip(x, unsqueeze(zip(part, both, [](double a, double b) { return std::exp(a - b); }), 3),
               std::multiplies<>());
  };
  assign(rows, zip(shared(copy(rows), old), shared(other, other_sums), std::plus<>()));
  assign(rows_at(sums, c), both);
  return {out, sums};
}

Results add_rows(const Call& c) {
  const Array out = copy(c.in("self"));
  add_into(rows_at(out, c), c.in("other"));
  return {out};
}

}  // namespace

void add_products(Operators& all) {
  all["aten::linear"] = linear;
  all["nnscaler::tiled_linear"] = linear;
  all["nnscaler::linear_input"] = [](const Call& c) {
    return Results{matmul(c.in("grad_output"), c.in("weight"))};
  };
  all["nnscaler::linear_weight"] = [](const Call& c) {
    return Results{product(transposed(rows_of(c.in("grad_output"))), rows_of(c.in("input")))};
  };
  all["aten::matmul"] = [](const Call& c) { return Results{matmul(c.in("self"), c.in("other"))}; };
  for (const char* name : {"aten::mm", "aten::bmm"})
    all[name] = [](const Call& c) { return Results{matmul(c.in("self"), c.in("mat2"))}; };
  all["aten::mv"] = [](const Call& c) { return Results{matmul(c.in("self"), c.in("vec"))}; };
  all["aten::dot"] = [](const Call& c) { return Results{matmul(c.in("self"), c.in("tensor"))}; };
  all["aten::outer"] = [](const Call& c) {
    return Results{zip(unsqueeze(c.in("self"), 1), c.in("vec2"), std::multiplies<>())};
  };
  all["aten::addmm"] = [](const Call& c) { return scaled_product(c, "mat1", "mat2"); };
  all["aten::baddbmm"] = [](const Call& c) { return scaled_product(c, "batch1", "batch2"); };
  for (const char* name : {"nnscaler::attention", "aten::scaled_dot_product_attention",
                           "aten::_scaled_dot_product_flash_attention_for_cpu"})
    all[name] = attention;
  all["nnscaler::join_attention"] = join_attention;
  all["nnscaler::add_rows"] = add_rows;
  for (const char* name : {"nnscaler::attention_backward",
                           "aten::_scaled_dot_product_flash_attention_for_cpu_backward"})
    all[name] = attention_backward;
}

}  // namespace nns::test
