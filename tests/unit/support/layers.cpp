// Embedding, normalisation and dropout.
#include <cmath>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

const Array kNothing = Array::filled({0});

// --- normalisation -------------------------------------------------------------------------------

// x̂ = (x - mean) · scale, whose statistics lie over `dims`.
struct Normal {
  Array mean, rstd, x;  // statistics with their dimensions kept as 1
};

Array mean_over(const Array& x, const Shape& dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(x.shape[static_cast<size_t>(d)]);
  return map(fold(x, dims, 0, std::plus<>()), [n](double s) { return s / n; });
}

Normal normalise(const Array& x, const Shape& dims, double eps, bool centre) {
  Normal out;
  out.mean = centre ? mean_over(x, dims) : Array::number(0);
  const Array d = zip(x, out.mean, std::minus<>());
  out.rstd = map(mean_over(zip(d, d, std::multiplies<>()), dims),
                 [eps](double v) { return 1 / std::sqrt(v + eps); });
  out.x = zip(d, out.rstd, std::multiplies<>());
  return out;
}

// Gradient of the input from that of x̂: rstd (g - mean g - x̂ mean(g x̂)).
Array input_gradient(const Array& g, const Array& x, const Array& rstd, const Shape& dims,
                     bool centre) {
  const Array along = mean_over(zip(g, x, std::multiplies<>()), dims);
  Array out = zip(g, zip(x, along, std::multiplies<>()), std::minus<>());
  if (centre) out = zip(out, mean_over(g, dims), std::minus<>());
  return zip(out, rstd, std::multiplies<>());
}

Shape last_dims(const Call& c, size_t rank) {
  Shape dims;
  for (size_t i = c.ints("normalized_shape").size(); i > 0; --i)
    dims.push_back(static_cast<int64_t>(rank - i));
  return dims;
}
Shape first_dims(size_t rank, size_t last) {
  Shape dims;
  for (size_t d = 0; d + last < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

Array affine(Array x, const Call& c) {
  if (c.has("weight")) x = zip(x, c.in("weight"), std::multiplies<>());
  if (c.has("bias")) x = zip(x, c.in("bias"), std::plus<>());
  return x;
}

Results layer_norm(const Call& c) {
  const Array x = c.in("input");
  const Normal n = normalise(x, last_dims(c, x.rank()), c.real("eps", 1e-5), true);
  return {affine(n.x, c), n.mean, n.rstd};
}
Results rms_norm(const Call& c) {
  const Array x = c.in("input");
  const Normal n = normalise(x, last_dims(c, x.rank()), c.real("eps"), false);
  return {affine(n.x, c), n.rstd};
}

Results last_norm_backward(const Call& c, bool centre) {
  const Array g = c.in(centre ? "grad_out" : "grad_output"), x = c.in("input"), rstd = c.in("rstd");
  const Shape dims = last_dims(c, x.rank()), rows = first_dims(x.rank(), dims.size());
  const Array hat =
      zip(centre ? zip(x, c.in("mean"), std::minus<>()) : x, rstd, std::multiplies<>());
  const Array gw = c.has("weight") ? zip(g, c.in("weight"), std::multiplies<>()) : g;
  const auto mask = c.flags("output_mask");
  Results out{mask[0] ? input_gradient(gw, hat, rstd, dims, centre) : kNothing};
  out.push_back(mask[1] ? drop(fold(zip(g, hat, std::multiplies<>()), rows, 0, std::plus<>()), rows)
                        : kNothing);
  if (centre) out.push_back(mask[2] ? drop(fold(g, rows, 0, std::plus<>()), rows) : kNothing);
  return out;
}

// --- batches and groups --------------------------------------------------------------------------

Shape all_but_channels(size_t rank) {
  Shape dims;
  for (size_t d = 0; d < rank; ++d)
    if (d != 1) dims.push_back(static_cast<int64_t>(d));
  return dims;
}
Array on_channels(const Array& v, size_t rank) {
  Shape shape(rank, 1);
  shape.at(1) = v.count();
  return reshape(v, shape);
}
Array affine_channels(Array x, const Call& c) {
  if (c.has("weight")) x = zip(x, on_channels(c.in("weight"), x.rank()), std::multiplies<>());
  if (c.has("bias")) x = zip(x, on_channels(c.in("bias"), x.rank()), std::plus<>());
  return x;
}

Results batch_norm(const Call& c) {
  const Array x = c.in("input");
  const double eps = c.real("eps");
  const Shape dims = all_but_channels(x.rank());
  if (!c.boolean("training")) {
    const Array d = zip(x, on_channels(c.in("running_mean"), x.rank()), std::minus<>());
    const Array s = map(on_channels(c.in("running_var"), x.rank()),
                        [eps](double v) { return 1 / std::sqrt(v + eps); });
    return {affine_channels(zip(d, s, std::multiplies<>()), c), kNothing, kNothing};
  }
  const Normal n = normalise(x, dims, eps, true);
  Results out{affine_channels(n.x, c), drop(n.mean, dims), drop(n.rstd, dims)};
  if (c.op() != "aten::_native_batch_norm_legit_functional") return out;
  const double m = c.real("momentum"), rows = static_cast<double>(x.count() / x.shape[1]);
  const auto mixed = [m](double old, double fresh) { return (1 - m) * old + m * fresh; };
  const Array var = map(out[2], [=](double r) { return (1 / (r * r) - eps) * rows / (rows - 1); });
  out.push_back(zip(c.in("running_mean"), out[1], mixed));
  out.push_back(zip(c.in("running_var"), var, mixed));
  return out;
}

// Gradients of weight and bias over all but the channels, masked.
void channel_gradients(Results& out, const Array& g, const Array& hat,
                       const std::vector<bool>& mask) {
  const Shape dims = all_but_channels(g.rank());
  out.push_back(mask[1] ? drop(fold(zip(g, hat, std::multiplies<>()), dims, 0, std::plus<>()), dims)
                        : kNothing);
  out.push_back(mask[2] ? drop(fold(g, dims, 0, std::plus<>()), dims) : kNothing);
}

Results batch_norm_backward(const Call& c) {
  const Array g = c.in("grad_out"), x = c.in("input");
  const bool train = c.boolean("train");
  const double eps = c.real("eps");
  const Array mean = on_channels(c.in(train ? "save_mean" : "running_mean"), x.rank());
  const Array rstd = train ? on_channels(c.in("save_invstd"), x.rank())
                           : map(on_channels(c.in("running_var"), x.rank()),
                                 [eps](double v) { return 1 / std::sqrt(v + eps); });
  const Array hat = zip(zip(x, mean, std::minus<>()), rstd, std::multiplies<>());
  const Array gw =
      c.has("weight") ? zip(g, on_channels(c.in("weight"), x.rank()), std::multiplies<>()) : g;
  const auto mask = c.flags("output_mask");
  Results out{!mask[0] ? kNothing
              : train  ? input_gradient(gw, hat, rstd, all_but_channels(x.rank()), true)
                       : zip(gw, rstd, std::multiplies<>())};
  channel_gradients(out, g, hat, mask);
  return out;
}

Array in_groups(const Array& x, int64_t n, int64_t groups) {
  return reshape(x, {n, groups, -1});
}

Results group_norm(const Call& c) {
  const Array x = c.in("input");
  const int64_t n = c.integer("N"), groups = c.integer("group");
  const Normal norm = normalise(in_groups(x, n, groups), {2}, c.real("eps"), true);
  return {affine_channels(reshape(norm.x, x.shape), c), drop(norm.mean, {2}), drop(norm.rstd, {2})};
}
Results group_norm_backward(const Call& c) {
  const Array g = c.in("grad_out"), x = c.in("input");
  const int64_t n = c.integer("N"), groups = c.integer("group");
  const Array mean = unsqueeze(c.in("mean"), 2), rstd = unsqueeze(c.in("rstd"), 2);
  const Array hat =
      zip(zip(in_groups(x, n, groups), mean, std::minus<>()), rstd, std::multiplies<>());
  const Array gw =
      c.has("weight") ? zip(g, on_channels(c.in("weight"), x.rank()), std::multiplies<>()) : g;
  const auto mask = c.flags("output_mask");
  Results out{mask[0]
                  ? reshape(input_gradient(in_groups(gw, n, groups), hat, rstd, {2}, true), x.shape)
                  : kNothing};
  channel_gradients(out, g, reshape(hat, x.shape), mask);
  return out;
}

// --- embedding and dropout -----------------------------------------------------------------------

Results embedding(const Call& c) {
  const Array w = c.in("weight"), at = c.in("indices");
  Shape shape = at.shape;
  shape.push_back(w.shape[1]);
  const Array out = Array::filled(shape);
  each(shape, [&](const Index& i) {
    const Index place(i.begin(), i.end() - 1);
    out.at(i) = w.at({static_cast<int64_t>(at.at(place)), i.back()});
  });
  return {out};
}
Results embedding_backward(const Call& c) {
  const Array g = c.in("grad_output"), at = c.in("indices");
  const int64_t rows = c.integer("num_weights"), padding = c.integer("padding_idx", -1);
  const Array out = Array::filled({rows, g.shape.back()});
  std::vector<double> times(static_cast<size_t>(rows), 0);
  each(at.shape, [&](const Index& i) { ++times.at(static_cast<size_t>(at.at(i))); });
  each(g.shape, [&](const Index& i) {
    const auto row = static_cast<int64_t>(at.at(Index(i.begin(), i.end() - 1)));
    if (row == padding) return;
    const double n = c.boolean("scale_grad_by_freq") ? times[static_cast<size_t>(row)] : 1;
    out.at({row, i.back()}) += g.at(i) / n;
  });
  return {out};
}

// Whether an element of the whole tensor is dropped depends on its place and the counters alone.
Results dropout(const Call& c) {
  const Array x = c.in("input");
  const Shape offset = c.has("offset") ? c.ints("offset") : Shape(x.rank(), 0);
  const Shape full = c.has("full") ? c.ints("full") : x.shape;
  const double p = c.real("p");
  const std::string key = c.text("key") + "/" + std::to_string(c.integer("seed")) + "/" +
                          std::to_string(c.integer("step")) + "/" +
                          std::to_string(c.integer("micro"));
  const Array out = Array::filled(x.shape);
  each(x.shape, [&](const Index& i) {
    int64_t place = 0;
    for (size_t d = 0; d < i.size(); ++d) place = place * full[d] + i[d] + offset[d];
    const uint64_t draw = hash_bytes(std::to_string(place), hash_bytes(key)) >> 11;
    out.at(i) = std::ldexp(static_cast<double>(draw), -53) < p ? 0 : x.at(i) / (1 - p);
  });
  return {out};
}

}  // namespace

void add_layers(Operators& all) {
  all["aten::native_layer_norm"] = layer_norm;
  all["aten::layer_norm"] = [](const Call& c) { return Results{layer_norm(c)[0]}; };
  all["aten::native_layer_norm_backward"] = [](const Call& c) {
    return last_norm_backward(c, true);
  };
  all["nnscaler::rms_norm"] = rms_norm;
  all["nnscaler::rms_norm_backward"] = [](const Call& c) { return last_norm_backward(c, false); };
  all["aten::native_batch_norm"] = batch_norm;
  all["aten::_native_batch_norm_legit_functional"] = batch_norm;
  all["aten::native_batch_norm_backward"] = batch_norm_backward;
  all["aten::native_group_norm"] = group_norm;
  all["aten::native_group_norm_backward"] = group_norm_backward;
  all["aten::embedding"] = embedding;
  all["aten::embedding_dense_backward"] = embedding_backward;
  all["nnscaler::dropout"] = dropout;
}

}  // namespace nns::test
