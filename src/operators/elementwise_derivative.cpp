// Derivatives of element-wise operators. Gradients are handed over in the shape of the output;
// Backward::give reduces them to broadcast arguments.
#include <cmath>
#include <limits>
#include <numbers>

#include "operators/family.h"

namespace nns::operators {
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
  if (!is_complex(b.type("self").dtype)) return no_slope(b);
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
  const Ref x = b.is_tensor("self")
                    ? b.in("self")
                    : b.e.full(b.grad(), {{}, b.type("other").dtype}, b.real("self"));
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

bool broadcast_tensors(Forward& f) {
  const Shape shape = infer(f).at(0).shape;
  for (const Ref ref : f.list("tensors"))
    f.result(f.e.shape(ref) == shape ? ref : f.grad_call("aten::expand", ref, shape));
  return true;
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

void gelu_back(B& b) {
  b.give("self", b("aten::gelu_backward", b.grad(), b.in("self"), b.text("approximate", "none")));
}
void own_gelu_back(B& b) {
  b.give("self",
         b("nnscaler::gelu_backward", b.grad(), b.in("self"), b.text("approximate", "none")));
}

}  // namespace

void add_elementwise_derivatives(Records& records) {
  // --- activations
  records.derive("aten::gelu", gradient(gelu_back));
  records.derive("nnscaler::gelu", gradient(own_gelu_back));
  records.set({"aten::gelu"}, [](Record& r) {
    r.kernels = {{"nnscaler::gelu",
                  [](const Forward& f) {
                    return f.e.device() == "cpu" && f.type("self").dtype == DType::f32;
                  },
                  [](Forward& f) {
                    f.result(
                        f.grad_call("nnscaler::gelu", f.in("self"), f.text("approximate", "none")));
                  }}};
  });
  records.derive("aten::relu", gradient([](B& b) {
                   b.give("self", b("aten::threshold_backward", b.grad(), b.out(), 0.0));
                 }));
  records.derive("aten::relu6", gradient([](B& b) {
                   b.give("self", b("aten::hardtanh_backward", b.grad(), b.in("self"), 0.0, 6.0));
                 }));
  records.derive("aten::silu", gradient([](B& b) {
                   b.give("self", b("aten::silu_backward", b.grad(), b.in("self")));
                 }));
  records.derive("aten::mish", gradient([](B& b) {
                   b.give("self", b("aten::mish_backward", b.grad(), b.in("self")));
                 }));
  records.derive("aten::sigmoid", gradient([](B& b) {
                   b.give("self", b("aten::sigmoid_backward", b.grad(), b.out()));
                 }));
  records.derive("aten::tanh", gradient([](B& b) {
                   b.give("self", b("aten::tanh_backward", b.grad(), b.out()));
                 }));
  records.derive("aten::log_sigmoid", gradient([](B& b) {
                   b.give("self", b.e.mul(b.grad(), b("aten::sigmoid", b.e.neg(b.in("self")))));
                 }));
  records.derive("aten::softplus", gradient([](B& b) {
                   b.give("self", b("aten::softplus_backward", b.grad(), b.in("self"),
                                    b.real("beta", 1), b.real("threshold", 20)));
                 }));
  records.derive("aten::elu", gradient([](B& b) {
                   b.give("self",
                          b("aten::elu_backward", b.grad(), b.real("alpha", 1), b.real("scale", 1),
                            b.real("input_scale", 1), false, b.in("self")));
                 }));
  records.derive("aten::celu", gradient([](B& b) {
                   const double alpha = b.real("alpha", 1);
                   b.give("self", b("aten::elu_backward", b.grad(), alpha, 1.0, 1 / alpha, false,
                                    b.in("self")));
                 }));
  records.derive("aten::selu", gradient([](B& b) {
                   b.give("self", b("aten::elu_backward", b.grad(), 1.6732632423543772,
                                    1.0507009873554805, 1.0, false, b.in("self")));
                 }));
  records.derive("aten::leaky_relu", gradient([](B& b) {
                   b.give("self", b("aten::leaky_relu_backward", b.grad(), b.in("self"),
                                    b.real("negative_slope", 0.01), false));
                 }));
  records.derive("aten::hardtanh", gradient([](B& b) {
                   b.give("self", b("aten::hardtanh_backward", b.grad(), b.in("self"),
                                    b.real("min_val", -1), b.real("max_val", 1)));
                 }));
  records.derive("aten::hardswish", gradient([](B& b) {
                   b.give("self", b("aten::hardswish_backward", b.grad(), b.in("self")));
                 }));
  records.derive("aten::hardsigmoid", gradient([](B& b) {
                   b.give("self", b("aten::hardsigmoid_backward", b.grad(), b.in("self")));
                 }));
  records.derive("aten::glu", gradient([](B& b) {
                   b.give("self",
                          b("aten::glu_backward", b.grad(), b.in("self"), b.integer("dim", -1)));
                 }));
  records.derive("aten::prelu", gradient(prelu));

  // --- functions of one number
  records.derive("aten::neg", gradient([](B& b) { b.give("self", b.e.neg(b.grad())); }));
  records.derive("aten::abs", gradient(abs));
  records.derive("aten::square", gradient([](B& b) {
                   b.give("self", b.e.mul(times_conj(b, b.grad(), b.in("self")), 2));
                 }));
  records.derive("aten::sqrt",
                 gradient([](B& b) { b.give("self", b.e.div(b.grad(), b.e.mul(b.out(), 2))); }));
  records.derive("aten::rsqrt", gradient([](B& b) {
                   const Ref cube = b("aten::pow.Tensor_Scalar", b.out(), 3);
                   b.give("self", b.e.mul(b.e.mul(b.grad(), cube), -0.5));
                 }));
  records.derive("aten::reciprocal", gradient([](B& b) {
                   b.give("self", b.e.neg(times_conj(b, b.grad(), b.e.mul(b.out(), b.out()))));
                 }));
  records.derive("aten::exp",
                 gradient([](B& b) { b.give("self", times_conj(b, b.grad(), b.out())); }));
  records.derive("aten::exp2", gradient([](B& b) {
                   b.give("self", b.e.mul(b.e.mul(b.grad(), b.out()), std::numbers::ln2));
                 }));
  records.derive("aten::expm1",
                 gradient([](B& b) { b.give("self", b.e.mul(b.grad(), b.e.add(b.out(), 1))); }));
  records.derive("aten::log",
                 gradient([](B& b) { b.give("self", b.e.div(b.grad(), b.e.conj(b.in("self")))); }));
  records.derive("aten::log2", gradient([](B& b) {
                   b.give("self", b.e.div(b.grad(), b.e.mul(b.in("self"), std::numbers::ln2)));
                 }));
  records.derive("aten::log10", gradient([](B& b) {
                   b.give("self", b.e.div(b.grad(), b.e.mul(b.in("self"), std::numbers::ln10)));
                 }));
  records.derive("aten::log1p", gradient([](B& b) {
                   b.give("self", b.e.div(b.grad(), b.e.add(b.in("self"), 1)));
                 }));
  records.derive("aten::sin", gradient([](B& b) {
                   b.give("self", times_conj(b, b.grad(), b("aten::cos", b.in("self"))));
                 }));
  records.derive("aten::cos", gradient([](B& b) {
                   b.give("self", b.e.neg(times_conj(b, b.grad(), b("aten::sin", b.in("self")))));
                 }));
  records.derive("aten::tan", gradient([](B& b) {
                   b.give("self", b.e.mul(b.grad(), b.e.add(b.e.mul(b.out(), b.out()), 1)));
                 }));
  records.derive("aten::asin",
                 gradient([](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, -1, 1))); }));
  records.derive("aten::acos", gradient([](B& b) {
                   b.give("self", b.e.neg(b.e.mul(b.grad(), inverse_root(b, -1, 1))));
                 }));
  records.derive("aten::atan", gradient([](B& b) {
                   const Ref x = b.in("self");
                   b.give("self", b.e.div(b.grad(), b.e.add(b.e.mul(x, x), 1)));
                 }));
  records.derive("aten::sinh", gradient([](B& b) {
                   b.give("self", b.e.mul(b.grad(), b("aten::cosh", b.in("self"))));
                 }));
  records.derive("aten::cosh", gradient([](B& b) {
                   b.give("self", b.e.mul(b.grad(), b("aten::sinh", b.in("self"))));
                 }));
  records.derive("aten::asinh",
                 gradient([](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, 1, 1))); }));
  records.derive("aten::acosh",
                 gradient([](B& b) { b.give("self", b.e.mul(b.grad(), inverse_root(b, 1, -1))); }));
  records.derive("aten::atanh", gradient([](B& b) {
                   const Ref x = b.in("self");
                   b.give("self", b.e.div(b.grad(), b("aten::rsub.Scalar", b.e.mul(x, x), 1.0)));
                 }));
  records.derive("aten::erf", gradient([](B& b) {
                   const Ref x = b.in("self");
                   const Ref bell = b("aten::exp", b.e.neg(b.e.mul(x, x)));
                   b.give("self", b.e.mul(b.e.mul(b.grad(), bell), 2 * std::numbers::inv_sqrtpi));
                 }));
  records.derive("aten::erfc", gradient([](B& b) {
                   const Ref x = b.in("self");
                   const Ref bell = b("aten::exp", b.e.neg(b.e.mul(x, x)));
                   b.give("self", b.e.mul(b.e.mul(b.grad(), bell), -2 * std::numbers::inv_sqrtpi));
                 }));
  records.derive("aten::nan_to_num", gradient([](B& b) {
                   const Ref finite = b("aten::isfinite", b.in("self"));
                   b.give("self", keep_where(b, finite, b.grad()));
                 }));
  records.derive("aten::sign", gradient(no_slope));
  records.derive("aten::sgn", gradient(sgn));
  records.derive("aten::ceil", gradient(no_slope));
  records.derive("aten::floor", gradient(no_slope));
  records.derive("aten::round", gradient(no_slope));
  records.derive("aten::trunc", gradient(no_slope));
  records.derive("aten::fill", gradient([](B& b) {
                   b.give("self", b("aten::zeros_like", b.grad()));
                   b.give("value", b.grad());
                 }));
  records.derive("aten::clamp", gradient(clamp));
  records.derive("aten::clamp_min", gradient(clamp));
  records.derive("aten::clamp_max", gradient(clamp));

  // --- of two
  records.derive("aten::add", gradient(add));
  records.derive("aten::sub", gradient(sub));
  records.derive("aten::rsub", gradient(rsub));
  records.derive("aten::mul", gradient(mul));
  records.derive("aten::div", gradient(div));
  records.derive("aten::pow", gradient(pow));
  records.derive("aten::maximum", gradient([](B& b) { extremum(b, "lt", "other"); }));
  records.derive("aten::minimum", gradient([](B& b) { extremum(b, "gt", "other"); }));
  records.derive("aten::max.other", gradient([](B& b) { extremum(b, "lt", "other"); }));
  records.derive("aten::min.other", gradient([](B& b) { extremum(b, "gt", "other"); }));
  records.derive("aten::remainder", gradient([](B& b) { modulus(b, "floor"); }));
  records.derive("aten::fmod", gradient([](B& b) { modulus(b, "trunc"); }));
  records.derive("aten::atan2", gradient(atan2));
  records.derive("aten::logaddexp", gradient(logaddexp));

  // --- of three
  records.derive("aten::where", gradient(where));
  records.derive("aten::masked_fill", gradient(masked_fill));
  records.derive("aten::lerp", gradient(lerp));
  records.derive("aten::addcmul", gradient(addcmul));
  records.derive("aten::addcdiv", gradient(addcdiv));

  // --- conversions
  records.derive("aten::broadcast_tensors", expands(broadcast_tensors));
  records.derive("aten::alias", expands([](Forward& f) { return same_tensor(f, "self"); }));
  records.derive("aten::contiguous", gradient(cast_back));
  records.derive("aten::clone", gradient(cast_back));
  records.derive("aten::to", gradient(cast_back));
  records.derive("aten::type_as", gradient(cast_back));
  records.derive("aten::_to_copy", gradient(cast_back));

  // --- complex numbers
  records.derive("aten::view_as_complex",
                 gradient([](B& b) { b.give("self", b("aten::view_as_real", b.grad())); }));
  records.derive("aten::view_as_real", gradient([](B& b) {
                   b.give("self", b("aten::view_as_complex", b("aten::contiguous", b.grad())));
                 }));
  records.derive("aten::polar", gradient(polar));
}

}  // namespace nns::operators
