// Activations, each by its definition, and their derivatives in closed form.
#include <cmath>
#include <numbers>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double softplus(double x, double beta, double threshold) {
  return beta * x > threshold ? x : std::log1p(std::exp(beta * x)) / beta;
}
double elu(double x, double alpha, double scale, double input_scale) {
  return x > 0 ? scale * x : scale * alpha * (std::exp(input_scale * x) - 1);
}
double gelu(double x, bool tanh) {
  if (!tanh) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}
double gelu_slope(double x, bool tanh) {
  if (!tanh)
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  const double k = std::sqrt(2 / std::numbers::pi), t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

using Function = double (*)(const Call&, double);

void activation(Operators& all, const char* name, Function f) {
  all[name] = [f](const Call& c) {
    return Results{map(c.in("self"), [&](double x) { return f(c, x); })};
  };
}
// The gradient times a slope in `of` ("self", "output").
void slope(Operators& all, const char* name, const char* of, Function f) {
  all[name] = [f, of](const Call& c) {
    return Results{
        zip(c.in("grad_output"), c.in(of), [&](double g, double x) { return g * f(c, x); })};
  };
}

Results glu(const Call& c) {
  const Array x = c.in("self");
  const size_t d = c.dim("dim", x.rank(), -1);
  const int64_t half = x.shape[d] / 2;
  return {zip(slice(x, d, 0, half), slice(x, d, half, 2 * half),
              [](double a, double b) { return a * sigmoid(b); })};
}
Results glu_backward(const Call& c) {
  const Array x = c.in("self"), g = c.in("grad_output");
  const size_t d = c.dim("dim", x.rank(), -1);
  const int64_t half = x.shape[d] / 2;
  const Array a = slice(x, d, 0, half), b = slice(x, d, half, 2 * half);
  const Array da = zip(g, b, [](double gi, double bi) { return gi * sigmoid(bi); });
  const Array db = zip(zip(g, a, std::multiplies<>()), b,
                       [](double ga, double bi) { return ga * sigmoid(bi) * (1 - sigmoid(bi)); });
  return {cat({da, db}, d)};
}

Results swiglu(const Call& c) {
  return {zip(c.in("gate"), c.in("up"), [](double x, double u) { return x * sigmoid(x) * u; })};
}
Results swiglu_backward(const Call& c) {
  const Array g = c.in("grad_output"), x = c.in("gate"), u = c.in("up");
  const Array dx = zip(zip(g, u, std::multiplies<>()), x, [](double gu, double a) {
    return gu * sigmoid(a) * (1 + a * (1 - sigmoid(a)));
  });
  return {dx, zip(g, x, [](double gi, double a) { return gi * a * sigmoid(a); })};
}

// The halves of the last dimension in the other order, the one that is then first negated.
Array turned(const Array& x) {
  const size_t d = x.rank() - 1;
  const int64_t half = x.shape[d] / 2;
  const Array right = map(slice(x, d, half, 2 * half), std::negate<>());
  return cat({right, slice(x, d, 0, half)}, d);
}
Results rope(const Call& c) {
  const Array x = c.in("self"), cos = c.in("cos"), sin = c.in("sin");
  return {zip(zip(x, cos, std::multiplies<>()), zip(turned(x), sin, std::multiplies<>()),
              std::plus<>())};
}
Results rope_backward(const Call& c) {
  const Array g = c.in("grad_output"), cos = c.in("cos"), sin = c.in("sin");
  return {zip(zip(g, cos, std::multiplies<>()), turned(zip(g, sin, std::multiplies<>())),
              std::minus<>())};
}

Results prelu(const Call& c) {
  const Array x = c.in("self");
  Array w = c.in("weight");
  if (w.count() > 1) {
    Shape shape(x.rank(), 1);
    shape.at(1) = w.count();
    w = reshape(w, shape);
  } else {
    w = reshape(w, Shape(x.rank(), 1));
  }
  return {zip(x, w, [](double a, double b) { return a > 0 ? a : a * b; })};
}

}  // namespace

void add_activations(Operators& all) {
  activation(all, "aten::relu", [](const Call&, double x) { return std::max(x, 0.0); });
  activation(all, "aten::relu6", [](const Call&, double x) { return std::clamp(x, 0.0, 6.0); });
  activation(all, "aten::hardtanh", [](const Call& c, double x) {
    return std::clamp(x, c.real("min_val", -1), c.real("max_val", 1));
  });
  activation(all, "aten::silu", [](const Call&, double x) { return x * sigmoid(x); });
  activation(all, "aten::mish",
             [](const Call&, double x) { return x * std::tanh(softplus(x, 1, 1e9)); });
  activation(all, "aten::log_sigmoid", [](const Call&, double x) { return std::log(sigmoid(x)); });
  activation(all, "aten::softplus", [](const Call& c, double x) {
    return softplus(x, c.real("beta", 1), c.real("threshold", 20));
  });
  activation(all, "aten::elu", [](const Call& c, double x) {
    return elu(x, c.real("alpha", 1), c.real("scale", 1), c.real("input_scale", 1));
  });
  activation(all, "aten::celu", [](const Call& c, double x) {
    const double alpha = c.real("alpha", 1);
    return elu(x, alpha, 1, 1 / alpha);
  });
  activation(all, "aten::selu", [](const Call&, double x) {
    return elu(x, 1.6732632423543772, 1.0507009873554805, 1);
  });
  activation(all, "aten::leaky_relu", [](const Call& c, double x) {
    return x > 0 ? x : x * c.real("negative_slope", 0.01);
  });
  activation(all, "aten::hardsigmoid",
             [](const Call&, double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); });
  activation(all, "aten::hardswish",
             [](const Call&, double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); });
  for (const char* name : {"aten::gelu", "nnscaler::gelu"})
    activation(all, name, [](const Call& c, double x) {
      return gelu(x, c.text("approximate", "none") == "tanh");
    });
  all["aten::glu"] = glu;
  all["aten::prelu"] = prelu;
  all["nnscaler::swiglu"] = swiglu;
  all["nnscaler::swiglu_backward"] = swiglu_backward;
  all["nnscaler::rope"] = rope;
  all["nnscaler::rope_backward"] = rope_backward;

  slope(all, "aten::threshold_backward", "self",
        [](const Call& c, double x) { return double(x > c.real("threshold")); });
  slope(all, "aten::hardtanh_backward", "self", [](const Call& c, double x) {
    return double(x > c.real("min_val") && x < c.real("max_val"));
  });
  slope(all, "aten::silu_backward", "self",
        [](const Call&, double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); });
  slope(all, "aten::mish_backward", "self", [](const Call&, double x) {
    const double t = std::tanh(softplus(x, 1, 1e9));
    return t + x * (1 - t * t) * sigmoid(x);
  });
  slope(all, "aten::sigmoid_backward", "output", [](const Call&, double y) { return y * (1 - y); });
  slope(all, "aten::tanh_backward", "output", [](const Call&, double y) { return 1 - y * y; });
  slope(all, "aten::softplus_backward", "self", [](const Call& c, double x) {
    const double beta = c.real("beta");
    return beta * x > c.real("threshold") ? 1 : sigmoid(beta * x);
  });
  slope(all, "aten::elu_backward", "self_or_result", [](const Call& c, double x) {
    const double scale = c.real("scale"), k = c.real("input_scale");
    return x > 0 ? scale : scale * c.real("alpha") * k * std::exp(k * x);
  });
  slope(all, "aten::leaky_relu_backward", "self",
        [](const Call& c, double x) { return x > 0 ? 1 : c.real("negative_slope"); });
  slope(all, "aten::hardsigmoid_backward", "self",
        [](const Call&, double x) { return std::abs(x) < 3 ? 1.0 / 6 : 0; });
  slope(all, "aten::hardswish_backward", "self", [](const Call&, double x) {
    return x > 3 ? 1 : x < -3 ? 0 : x / 3 + 0.5;
  });
  for (const char* name : {"aten::gelu_backward", "nnscaler::gelu_backward"})
    slope(all, name, "self", [](const Call& c, double x) {
      return gelu_slope(x, c.text("approximate", "none") == "tanh");
    });
  all["aten::glu_backward"] = glu_backward;
}

}  // namespace nns::test
