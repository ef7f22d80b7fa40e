// Derivatives of element-wise operators. Gradients are handed over in the shape of the output;
// Backward::give reduces them to broadcast arguments.
#include <cmath>
#include <limits>
#include <numbers>

#include "lower/rule.h"

namespace nns::lower {
namespace {

using B = Backward;

// a * b, with b conjugated where the tensors are complex.
Ref times_conj(B& b, Ref gradient, Ref factor) {
  return b.e.mul(gradient, b.e.conj(factor));
}

// Zeros of the gradient's shape: a path to the loss, though no slope.
void no_slope(B& b) {
  b.give("self", b("aten::zeros_like", b.grad()));
}

// Of complex numbers: across the direction, scaled by the size; zero for real ones.
void sgn(B& b) {
  if (!is_complex(b.dtype("self"))) return no_slope(b);
  const Ref size = b("aten::abs", b.in("self"));
  const Ref along = b.e.mul(b.out(), b("aten::real", b.e.div(b.grad(), b.out())));
  const Ref slope = b.e.div(b.e.sub(b.grad(), along), size);
  b.give("self", b("aten::masked_fill.Scalar", slope, b("aten::eq.Scalar", size, 0.0), 0.0));
}

// Keeps the gradient where `mask` holds, zero elsewhere.
Ref keep_where(B& b, Ref mask, Ref gradient) {
  return b("aten::where.ScalarOther", mask, gradient, 0.0);
}
Ref zero_where(B& b, Ref mask, Ref gradient) {
  return b("aten::masked_fill.Scalar", gradient, mask, 0.0);
}

// max and min of two tensors: a tie halves the gradient.
void extremum(B& b, const char* loses, const char* other) {
  const Ref a = b.in("self"), c = b.in(other);
  const Ref tie = b("aten::eq.Tensor", a, c);
  const Ref shared = b("aten::where.self", tie, b.e.mul(b.grad(), 0.5), b.grad());
  const std::string op = fmt::format("aten::{}.Tensor", loses);
  if (b.needs("self")) b.give("self", zero_where(b, b(op, a, c), shared));
  if (b.needs(other)) b.give(other, zero_where(b, b(op, c, a), shared));
}

// Between numbers the border has slope 0.
void clamp_numbers(B& b) {
  const Ref x = b.in("self");
  Ref inside;
  if (b.has("min")) inside = b("aten::gt.Scalar", x, b.arg("min"));
  if (b.has("max")) {
    const Ref below = b("aten::lt.Scalar", x, b.arg("max"));
    inside = inside.id < 0 ? below : b("aten::logical_and", inside, below);
  }
  b.give("self", keep_where(b, inside, b.grad()));
}

// Between tensors a tie with one bound halves the gradient, with both leaves it whole; crossed
// bounds give max.
void clamp_tensors(B& b) {
  const Ref x = b.in("self"), low = b.in("min"), high = b.in("max"), g = b.grad();
  const Ref at_low = b("aten::eq.Tensor", x, low), at_high = b("aten::eq.Tensor", x, high);
  const Ref half = b.e.mul(g, 0.5);
  if (b.needs("self")) {
    const Ref outside =
        b("aten::logical_or", b("aten::lt.Tensor", x, low), b("aten::gt.Tensor", x, high));
    const Ref tie = b("aten::logical_xor", at_low, at_high);
    b.give("self", zero_where(b, outside, b("aten::where.self", tie, half, g)));
  }
  // Of a bound: all beyond it, half at it where the other is further on.
  const Ref apart = b("aten::lt.Tensor", low, high);
  const auto bound = [&](const Ref& beyond, const Ref& at) {
    const Ref shared = keep_where(b, b("aten::logical_and", at, apart), half);
    return b("aten::where.self", beyond, g, shared);
  };
  if (b.needs("min"))
    b.give("min", bound(b("aten::logical_and", b("aten::lt.Tensor", x, low),
                          b("aten::le.Tensor", low, high)),
                        at_low));
  if (b.needs("max"))
    b.give("max", bound(b("aten::logical_or", b("aten::gt.Tensor", x, high),
                          b("aten::lt.Tensor", high, low)),
                        at_high));
}

void clamp(B& b) {
  if (b.is_tensor("min") && b.is_tensor("max")) return clamp_tensors(b);
  if (b.is_tensor("min")) return extremum(b, "lt", "min");
  if (b.is_tensor("max")) return extremum(b, "gt", "max");
  clamp_numbers(b);
}

void add(B& b) {
  b.give("self", b.grad());
  if (b.needs("other")) b.give("other", b.e.mul(b.grad(), b.real("alpha", 1)));
}
void sub(B& b) {
  b.give("self", b.grad());
  if (b.needs("other")) b.give("other", b.e.mul(b.grad(), -b.real("alpha", 1)));
}
void rsub(B& b) {  // other - alpha * self
  if (b.needs("self")) b.give("self", b.e.mul(b.grad(), -b.real("alpha", 1)));
  b.give("other", b.grad());
}
void mul(B& b) {
  if (b.needs("self"))
    b.give("self", b.is_tensor("other") ? times_conj(b, b.grad(), b.in("other"))
                                        : b.e.mul(b.grad(), b.real("other")));
  if (b.needs("other")) b.give("other", times_conj(b, b.grad(), b.in("self")));
}
void div(B& b) {
  if (b.has("rounding_mode")) {
    if (b.needs("self")) b.give("self", b("aten::zeros_like", b.grad()));
    if (b.needs("other")) b.give("other", b("aten::zeros_like", b.grad()));
    return;
  }
  if (!b.is_tensor("other")) {
    b.give("self", b("aten::div.Scalar", b.grad(), b.arg("other")));
    return;
  }
  const Ref other = b.e.conj(b.in("other"));
  const Ref share = b.e.div(b.grad(), other);
  b.give("self", share);
  if (b.needs("other")) b.give("other", b.e.neg(b.e.mul(share, b.e.conj(b.out()))));
}

void pow(B& b) {
  const Ref g = b.grad();
  if (!b.is_tensor("self")) {  // number ** exponent
    const double base = b.real("self");
    const Ref slope = b.e.mul(b.e.mul(g, b.out()), std::log(base));
    // 0 ** 0 has slope 0, like 0 ** x for x > 0.
    b.give("exponent",
           base == 0.0 ? zero_where(b, b("aten::ge.Scalar", b.in("exponent"), 0.0), slope) : slope);
    return;
  }
  const Ref x = b.in("self");
  if (!b.is_tensor("exponent")) {
    const double p = b.real("exponent");
    if (p == 0.0) return b.give("self", b("aten::zeros_like", g));
    if (p == 1.0) return b.give("self", g);
    const Ref power = p == 2.0 ? x : b("aten::pow.Tensor_Scalar", x, p - 1);
    return b.give("self", times_conj(b, g, b.e.mul(power, p)));
  }
  const Ref p = b.in("exponent");
  if (b.needs("self")) {
    const Ref power = b("aten::pow.Tensor_Tensor", x, b.e.add(p, -1));
    const Ref slope = b.e.mul(b.e.mul(g, p), power);
    b.give("self", zero_where(b, b("aten::eq.Scalar", p, 0.0), slope));
  }
  if (b.needs("exponent")) {
    const Ref flat =
        b("aten::logical_and", b("aten::eq.Scalar", x, 0.0), b("aten::ge.Scalar", p, 0.0));
    const Ref slope = b.e.mul(b.e.mul(g, b.out()), b("aten::log", x));
    b.give("exponent", zero_where(b, flat, slope));
  }
}

void where(B& b) {
  const Ref mask = b.in("condition");
  if (b.needs("self")) b.give("self", keep_where(b, mask, b.grad()));
  if (b.needs("other")) b.give("other", zero_where(b, mask, b.grad()));
}

void masked_fill(B& b) {
  if (b.needs("self")) b.give("self", zero_where(b, b.in("mask"), b.grad()));
  if (b.needs("value")) b.give("value", keep_where(b, b.in("mask"), b.grad()));
}

// remainder and fmod: d/d other is -floor (or -trunc) of the quotient.
void modulus(B& b, const char* rounding) {
  b.give("self", b.grad());
  if (!b.needs("other")) return;
  const Ref x = b.is_tensor("self") ? b.in("self")
                                    : b.e.full(b.grad(), {{}, b.dtype("other")}, b.real("self"));
  const Ref quotient = b("aten::div.Tensor_mode", x, b.in("other"), rounding);
  b.give("other", b.e.neg(b.e.mul(b.grad(), quotient)));
}

void atan2(B& b) {
  const Ref y = b.in("self"), x = b.in("other");
  const Ref square = b.e.add(b.e.mul(y, y), b.e.mul(x, x));
  const Ref scale = zero_where(b, b("aten::eq.Scalar", square, 0.0), b.e.div(b.grad(), square));
  if (b.needs("self")) b.give("self", b.e.mul(scale, x));
  if (b.needs("other")) b.give("other", b.e.neg(b.e.mul(scale, y)));
}

void lerp(B& b) {
  const Ref g = b.grad();
  if (!b.is_tensor("weight")) {
    const double w = b.real("weight");
    if (b.needs("self")) b.give("self", b("aten::mul.Scalar", g, 1 - w));
    if (b.needs("end")) b.give("end", b("aten::mul.Scalar", g, w));
    return;
  }
  const Ref w = b.in("weight");
  if (b.needs("self")) b.give("self", b.e.mul(g, b("aten::rsub.Scalar", w, 1.0)));
  if (b.needs("end")) b.give("end", b.e.mul(g, w));
  if (b.needs("weight")) b.give("weight", b.e.mul(g, b.e.sub(b.in("end"), b.in("self"))));
}

void addcmul(B& b) {
  b.give("self", b.grad());
  const Ref g = b.e.mul(b.grad(), b.real("value", 1));
  if (b.needs("tensor1")) b.give("tensor1", b.e.mul(g, b.in("tensor2")));
  if (b.needs("tensor2")) b.give("tensor2", b.e.mul(g, b.in("tensor1")));
}
void addcdiv(B& b) {
  b.give("self", b.grad());
  const Ref share = b.e.div(b.e.mul(b.grad(), b.real("value", 1)), b.in("tensor2"));
  b.give("tensor1", share);
  if (b.needs("tensor2"))
    b.give("tensor2", b.e.neg(b.e.mul(share, b.e.div(b.in("tensor1"), b.in("tensor2")))));
}

void logaddexp(B& b) {
  if (b.needs("self"))
    b.give("self", b.e.mul(b.grad(), b("aten::exp", b.e.sub(b.in("self"), b.out()))));
  if (b.needs("other"))
    b.give("other", b.e.mul(b.grad(), b("aten::exp", b.e.sub(b.in("other"), b.out()))));
}

// d/dx f = factor / sqrt(sign * x² + constant)
Ref inverse_root(B& b, double sign, double constant) {
  const Ref x = b.in("self");
  return b("aten::rsqrt", b.e.add(b.e.mul(b.e.mul(x, x), sign), constant));
}

// `abs` of complex numbers and everything after it: g * sgn(x).
void abs(B& b) {
  const Ref sign = b("aten::sgn", b.in("self"));
  b.give("self", b.e.mul(b.grad(), sign));
}

void prelu(B& b) {
  const Ref x = b.in("self"), g = b.grad();
  // One weight a channel (dimension 1), or one for all.
  const Shape from = b.shape("weight");
  Shape to(static_cast<size_t>(b.rank("self")), 1);
  if (numel(from) != 1) to.at(1) = from.front();
  const Ref w = b.e.reshape(b.in("weight"), to);
  const Ref positive = b("aten::gt.Scalar", x, 0.0);
  if (b.needs("self")) b.give("self", b("aten::where.self", positive, g, b.e.mul(g, w)));
  if (b.needs("weight")) {
    const Ref full = zero_where(b, positive, b.e.mul(g, x));
    b.give("weight", b.e.reshape(b.e.sum_to(full, to), from));
  }
}

bool same_tensor(Forward& f, std::string_view name) {
  f.result(f.in(name));
  return true;
}

void cast_back(B& b) {
  b.give("self", b.grad());
}  // give() casts

void polar(B& b) {  // abs * (cos(angle) + i sin(angle))
  const Ref g = b("aten::conj_physical", b.grad());
  const Ref along = b.e.mul(g, b.out());
  if (b.needs("abs")) {
    const Ref unit = b("aten::polar", b("aten::ones_like", b.in("abs")), b.in("angle"));
    b.give("abs", b("aten::real", b.e.mul(g, unit)));
  }
  if (b.needs("angle")) b.give("angle", b.e.neg(b("aten::imag", along)));
}

const std::vector<Rule>& rules() {
  static const double ln2 = std::numbers::ln2, ln10 = std::numbers::ln10;
  static const std::vector<Rule> table = {
      // --- activations
      gradient("aten::relu",
               [](B& b) { b.give("self", b("aten::threshold_backward", b.grad(), b.out(), 0.0)); }),
      gradient("aten::relu6",
               [](B& b) {
                 b.give("self", b("aten::hardtanh_backward", b.grad(), b.in("self"), 0.0, 6.0));
               }),
      gradient("aten::silu",
               [](B& b) { b.give("self", b("aten::silu_backward", b.grad(), b.in("self"))); }),
      gradient("aten::mish",
               [](B& b) { b.give("self", b("aten::mish_backward", b.grad(), b.in("self"))); }),
      gradient("aten::sigmoid",
               [](B& b) { b.give("self", b("aten::sigmoid_backward", b.grad(), b.out())); }),
      gradient("aten::tanh",
               [](B& b) { b.give("self", b("aten::tanh_backward", b.grad(), b.out())); }),
      gradient("aten::log_sigmoid",
               [](B& b) {
                 b.give("self", b.e.mul(b.grad(), b("aten::sigmoid", b.e.neg(b.in("self")))));
               }),
      gradient("aten::softplus",
               [](B& b) {
                 b.give("self", b("aten::softplus_backward", b.grad(), b.in("self"),
                                  b.real("beta", 1), b.real("threshold", 20)));
               }),
      gradient("aten::elu",
               [](B& b) {
                 b.give("self",
                        b("aten::elu_backward", b.grad(), b.real("alpha", 1), b.real("scale", 1),
                          b.real("input_scale", 1), false, b.in("self")));
               }),
      gradient("aten::celu",
               [](B& b) {
                 const double alpha = b.real("alpha", 1);
                 b.give("self", b("aten::elu_backward", b.grad(), alpha, 1.0, 1 / alpha, false,
                                  b.in("self")));
               }),
      gradient("aten::selu",
               [](B& b) {
                 b.give("self", b("aten::elu_backward", b.grad(), 1.6732632423543772,
                                  1.0507009873554805, 1.0, false, b.in("self")));
               }),
      gradient("aten::leaky_relu",
               [](B& b) {
                 b.give("self", b("aten::leaky_relu_backward", b.grad(), b.in("self"),
                                  b.real("negative_slope", 0.01), false));
               }),
      gradient("aten::hardtanh",
               [](B& b) {
                 b.give("self", b("aten::hardtanh_backward", b.grad(), b.in("self"),
                                  b.real("min_val", -1), b.real("max_val", 1)));
               }),
      gradient("aten::hardswish",
               [](B& b) { b.give("self", b("aten::hardswish_backward", b.grad(), b.in("self"))); }),
      gradient(
          "aten::hardsigmoid",
          [](B& b) { b.give("self", b("aten::hardsigmoid_backward", b.grad(), b.in("self"))); }),
      gradient("aten::glu",
               [](B& b) {
                 b.give("self",
                        b("aten::glu_backward", b.grad(), b.in("self"), b.integer("dim", -1)));
               }),
      gradient("aten::prelu", prelu),

      // --- functions of one number
      gradient("aten::neg", [](B& b) { b.give("self", b.e.neg(b.grad())); }),
      gradient("aten::abs", abs),
      gradient("aten::square",
               [](B& b) { b.give("self", b.e.mul(times_conj(b, b.grad(), b.in("self")), 2)); }),
      gradient("aten::sqrt", [](B& b) { b.give("self", b.e.div(b.grad(), b.e.mul(b.out(), 2))); }),
      gradient("aten::rsqrt",
               [](B& b) {
                 const Ref cube = b("aten::pow.Tensor_Scalar", b.out(), 3);
                 b.give("self", b.e.mul(b.e.mul(b.grad(), cube), -0.5));
               }),
      gradient("aten::reciprocal",
               [](B& b) {
                 b.give("self", b.e.neg(times_conj(b, b.grad(), b.e.mul(b.out(), b.out()))));
               }),
      gradient("aten::exp", [](B& b) { b.give("self", times_conj(b, b.grad(), b.out())); }),
      gradient("aten::exp2",
               [](B& b) { b.give("self", b.e.mul(b.e.mul(b.grad(), b.out()), ln2)); }),
      gradient("aten::expm1", [](B& b) { b.give("self", b.e.mul(b.grad(), b.e.add(b.out(), 1))); }),
      gradient("aten::log",
               [](B& b) { b.give("self", b.e.div(b.grad(), b.e.conj(b.in("self")))); }),
      gradient("aten::log2",
               [](B& b) { b.give("self", b.e.div(b.grad(), b.e.mul(b.in("self"), ln2))); }),
      gradient("aten::log10",
               [](B& b) { b.give("self", b.e.div(b.grad(), b.e.mul(b.in("self"), ln10))); }),
      gradient("aten::log1p",
               [](B& b) { b.give("self", b.e.div(b.grad(), b.e.add(b.in("self"), 1))); }),
      gradient("aten::sin",
               [](B& b) { b.give("self", times_conj(b, b.grad(), b("aten::cos", b.in("self")))); }),
      gradient("aten::cos",
               [](B& b) {
                 b.give("self", b.e.neg(times_conj(b, b.grad(), b("aten::sin", b.in("self")))));
               }),
      gradient(
          "aten::tan",
          [](B& b) { b.give("self", b.e.mul(b.grad(), b.e.add(b.e.mul(b.out(), b.out()), 1))); }),
      gradient("aten::asin",
               [](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, -1, 1))); }),
      gradient("aten::acos",
               [](B& b) { b.give("self", b.e.neg(b.e.mul(b.grad(), inverse_root(b, -1, 1)))); }),
      gradient("aten::atan",
               [](B& b) {
                 const Ref x = b.in("self");
                 b.give("self", b.e.div(b.grad(), b.e.add(b.e.mul(x, x), 1)));
               }),
      gradient("aten::sinh",
               [](B& b) { b.give("self", b.e.mul(b.grad(), b("aten::cosh", b.in("self")))); }),
      gradient("aten::cosh",
               [](B& b) { b.give("self", b.e.mul(b.grad(), b("aten::sinh", b.in("self")))); }),
      gradient("aten::asinh",
               [](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, 1, 1))); }),
      gradient("aten::acosh",
               [](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, 1, -1))); }),
      gradient("aten::atanh",
               [](B& b) {
                 const Ref x = b.in("self");
                 b.give("self", b.e.div(b.grad(), b("aten::rsub.Scalar", b.e.mul(x, x), 1.0)));
               }),
      gradient("aten::erf",
               [](B& b) {
                 const Ref x = b.in("self");
                 const Ref bell = b("aten::exp", b.e.neg(b.e.mul(x, x)));
                 b.give("self", b.e.mul(b.e.mul(b.grad(), bell), 2 * std::numbers::inv_sqrtpi));
               }),
      gradient("aten::erfc",
               [](B& b) {
                 const Ref x = b.in("self");
                 const Ref bell = b("aten::exp", b.e.neg(b.e.mul(x, x)));
                 b.give("self", b.e.mul(b.e.mul(b.grad(), bell), -2 * std::numbers::inv_sqrtpi));
               }),
      gradient("aten::nan_to_num",
               [](B& b) {
                 const Ref finite = b("aten::isfinite", b.in("self"));
                 b.give("self", keep_where(b, finite, b.grad()));
               }),
      gradient("aten::sign", no_slope),
      gradient("aten::sgn", sgn),
      gradient("aten::ceil", no_slope),
      gradient("aten::floor", no_slope),
      gradient("aten::round", no_slope),
      gradient("aten::trunc", no_slope),
      gradient("aten::fill.Scalar", no_slope),
      gradient("aten::fill.Tensor",
               [](B& b) {
                 b.give("self", b("aten::zeros_like", b.grad()));
                 b.give("value", b.grad());
               }),
      gradient("aten::clamp", clamp),
      gradient("aten::clamp_min", clamp),
      gradient("aten::clamp_max", clamp),

      // --- of two
      gradient("aten::add", add),
      gradient("aten::sub", sub),
      gradient("aten::rsub", rsub),
      gradient("aten::mul", mul),
      gradient("aten::div", div),
      gradient("aten::pow", pow),
      gradient("aten::maximum", [](B& b) { extremum(b, "lt", "other"); }),
      gradient("aten::minimum", [](B& b) { extremum(b, "gt", "other"); }),
      gradient("aten::max.other", [](B& b) { extremum(b, "lt", "other"); }),
      gradient("aten::min.other", [](B& b) { extremum(b, "gt", "other"); }),
      gradient("aten::remainder", [](B& b) { modulus(b, "floor"); }),
      gradient("aten::fmod", [](B& b) { modulus(b, "trunc"); }),
      gradient("aten::atan2", atan2),
      gradient("aten::logaddexp", logaddexp),

      // --- of three
      gradient("aten::where", where),
      gradient("aten::masked_fill", masked_fill),
      gradient("aten::lerp", lerp),
      gradient("aten::addcmul", addcmul),
      gradient("aten::addcdiv", addcdiv),

      // --- conversions
      expands("aten::alias", [](Forward& f) { return same_tensor(f, "self"); }),
      gradient("aten::contiguous", cast_back),
      gradient("aten::clone", cast_back),
      gradient("aten::to", cast_back),
      gradient("aten::type_as", cast_back),
      gradient("aten::_to_copy", cast_back),
      constant("aten::detach"),

      // --- complex numbers
      gradient("aten::view_as_complex",
               [](B& b) { b.give("self", b("aten::view_as_real", b.grad())); }),
      gradient("aten::view_as_real",
               [](B& b) {
                 b.give("self", b("aten::view_as_complex", b("aten::contiguous", b.grad())));
               }),
      gradient("aten::polar", polar),
  };
  return table;
}

}  // namespace

std::span<const Rule> elementwise_rules() {
  return rules();
}

}  // namespace nns::lower
