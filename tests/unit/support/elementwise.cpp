// Element-wise operators, casts and filled tensors.
#include <cmath>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;
using One = double (*)(double);
using Two = double (*)(double, double);

double sign(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

void unary(Operators& all, const char* name, One f) {
  all[name] = [f](const Call& c) { return Results{map(c.in("self"), f)}; };
}
void binary(Operators& all, const char* name, Two f) {
  all[name] = [f](const Call& c) { return Results{zip(c.in("self"), c.in("other"), f)}; };
}

double round_by(const std::string& mode, double x) {
  return mode == "floor" ? std::floor(x) : mode == "trunc" ? std::trunc(x) : x;
}

// Same memory where nothing has to change.
Results same(const Call& c) {
  return {c.in("self")};
}

Results cast(const Call& c) {
  const Array x = c.in("self");
  const auto* dtype = c.find("dtype");
  const DType to = c.has("other") ? c.in("other").dtype
                   : dtype != nullptr && std::get_if<DType>(dtype) != nullptr
                       ? std::get<DType>(*dtype)
                       : x.dtype;
  if (to == x.dtype) return {x};
  const auto convert = [to](double v) {
    if (to == DType::boolean) return v != 0 ? 1.0 : 0.0;
    return is_floating(to) ? v : std::trunc(v);
  };
  Array out = map(x, convert);
  out.dtype = to;
  return {out};
}

Results clamp(const Call& c) {
  Array x = copy(c.in("self"));
  if (c.has("min")) x = zip(x, c.in("min"), [](double a, double b) { return std::max(a, b); });
  if (c.has("max")) x = zip(x, c.in("max"), [](double a, double b) { return std::min(a, b); });
  return {x};
}

// f(self, a, b), broadcast together.
Array three(const Array& x, const Array& a, const Array& b,
            const std::function<double(double, double, double)>& f) {
  const Shape shape = broadcast_shape(broadcast_shape(x.shape, a.shape), b.shape);
  Array out = Array::filled(shape, 0, a.dtype);
  const Array xs = expand(x, shape), as = expand(a, shape), bs = expand(b, shape);
  each(shape, [&](const Index& i) { out.at(i) = f(xs.at(i), as.at(i), bs.at(i)); });
  return out;
}

void add_arithmetic(Operators& all) {
  all["aten::add"] = [](const Call& c) {
    const double alpha = c.real("alpha", 1);
    return Results{
        zip(c.in("self"), c.in("other"), [=](double a, double b) { return a + alpha * b; })};
  };
  all["aten::add_"] = [](const Call& c) {
    add_into(c.in("self"), c.in("other"));
    return Results{c.in("self")};
  };
  all["aten::sub"] = [](const Call& c) {
    const double alpha = c.real("alpha", 1);
    return Results{
        zip(c.in("self"), c.in("other"), [=](double a, double b) { return a - alpha * b; })};
  };
  all["aten::rsub"] = [](const Call& c) {
    const double alpha = c.real("alpha", 1);
    return Results{
        zip(c.in("self"), c.in("other"), [=](double a, double b) { return b - alpha * a; })};
  };
  all["aten::div"] = [](const Call& c) {
    const std::string mode = c.text("rounding_mode");
    return Results{zip(c.in("self"), c.in("other"),
                       [&](double a, double b) { return round_by(mode, a / b); })};
  };
  all["aten::pow"] = [](const Call& c) {
    return Results{
        zip(c.in("self"), c.in("exponent"), [](double a, double b) { return std::pow(a, b); })};
  };
  binary(all, "aten::mul", [](double a, double b) { return a * b; });
  binary(all, "aten::fmod", [](double a, double b) { return std::fmod(a, b); });
  binary(all, "aten::remainder", [](double a, double b) { return a - std::floor(a / b) * b; });
  binary(all, "aten::atan2", [](double a, double b) { return std::atan2(a, b); });
  binary(all, "aten::logaddexp",
         [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); });
  for (const char* name : {"aten::maximum", "aten::max.other"})
    binary(all, name, [](double a, double b) { return std::max(a, b); });
  for (const char* name : {"aten::minimum", "aten::min.other"})
    binary(all, name, [](double a, double b) { return std::min(a, b); });
  binary(all, "aten::eq", [](double a, double b) { return double(a == b); });
  binary(all, "aten::ne", [](double a, double b) { return double(a != b); });
  binary(all, "aten::lt", [](double a, double b) { return double(a < b); });
  binary(all, "aten::le", [](double a, double b) { return double(a <= b); });
  binary(all, "aten::gt", [](double a, double b) { return double(a > b); });
  binary(all, "aten::ge", [](double a, double b) { return double(a >= b); });
  binary(all, "aten::logical_and", [](double a, double b) { return double(a != 0 && b != 0); });
  binary(all, "aten::logical_or", [](double a, double b) { return double(a != 0 || b != 0); });
  binary(all, "aten::logical_xor", [](double a, double b) { return double((a != 0) != (b != 0)); });
  all["aten::lerp"] = [](const Call& c) {
    return Results{three(c.in("weight"), c.in("self"), c.in("end"),
                         [](double w, double a, double b) { return a + w * (b - a); })};
  };
  all["aten::addcmul"] = [](const Call& c) {
    const double v = c.real("value", 1);
    return Results{three(c.in("self"), c.in("tensor1"), c.in("tensor2"),
                         [=](double x, double a, double b) { return x + v * a * b; })};
  };
  all["aten::addcdiv"] = [](const Call& c) {
    const double v = c.real("value", 1);
    return Results{three(c.in("self"), c.in("tensor1"), c.in("tensor2"),
                         [=](double x, double a, double b) { return x + v * a / b; })};
  };
}

void add_functions(Operators& all) {
  unary(all, "aten::neg", [](double x) { return -x; });
  unary(all, "aten::abs", [](double x) { return std::abs(x); });
  unary(all, "aten::sign", sign);
  unary(all, "aten::sgn", sign);
  unary(all, "aten::ceil", [](double x) { return std::ceil(x); });
  unary(all, "aten::floor", [](double x) { return std::floor(x); });
  unary(all, "aten::round", [](double x) { return std::nearbyint(x); });
  unary(all, "aten::trunc", [](double x) { return std::trunc(x); });
  unary(all, "aten::square", [](double x) { return x * x; });
  unary(all, "aten::exp", [](double x) { return std::exp(x); });
  unary(all, "aten::exp2", [](double x) { return std::exp2(x); });
  unary(all, "aten::expm1", [](double x) { return std::expm1(x); });
  unary(all, "aten::log", [](double x) { return std::log(x); });
  unary(all, "aten::log2", [](double x) { return std::log2(x); });
  unary(all, "aten::log10", [](double x) { return std::log10(x); });
  unary(all, "aten::log1p", [](double x) { return std::log1p(x); });
  unary(all, "aten::sqrt", [](double x) { return std::sqrt(x); });
  unary(all, "aten::rsqrt", [](double x) { return 1 / std::sqrt(x); });
  unary(all, "aten::reciprocal", [](double x) { return 1 / x; });
  unary(all, "aten::sin", [](double x) { return std::sin(x); });
  unary(all, "aten::cos", [](double x) { return std::cos(x); });
  unary(all, "aten::tan", [](double x) { return std::tan(x); });
  unary(all, "aten::asin", [](double x) { return std::asin(x); });
  unary(all, "aten::acos", [](double x) { return std::acos(x); });
  unary(all, "aten::atan", [](double x) { return std::atan(x); });
  unary(all, "aten::sinh", [](double x) { return std::sinh(x); });
  unary(all, "aten::cosh", [](double x) { return std::cosh(x); });
  unary(all, "aten::tanh", [](double x) { return std::tanh(x); });
  unary(all, "aten::asinh", [](double x) { return std::asinh(x); });
  unary(all, "aten::acosh", [](double x) { return std::acosh(x); });
  unary(all, "aten::atanh", [](double x) { return std::atanh(x); });
  unary(all, "aten::erf", [](double x) { return std::erf(x); });
  unary(all, "aten::erfc", [](double x) { return std::erfc(x); });
  unary(all, "aten::sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); });
  unary(all, "aten::nan_to_num", [](double x) { return std::isfinite(x) ? x : 0; });
  unary(all, "aten::isfinite", [](double x) { return double(std::isfinite(x)); });
  unary(all, "aten::logical_not", [](double x) { return double(x == 0); });
}

}  // namespace

void add_elementwise(Operators& all) {
  add_arithmetic(all);
  add_functions(all);
  for (const char* name : {"aten::clamp", "aten::clamp_min", "aten::clamp_max"}) all[name] = clamp;
  all["aten::where"] = [](const Call& c) {
    return Results{three(c.in("condition"), c.in("self"), c.in("other"),
                         [](double m, double a, double b) { return m != 0 ? a : b; })};
  };
  all["aten::masked_fill"] = [](const Call& c) {
    return Results{three(c.in("mask"), c.in("self"), c.in("value"),
                         [](double m, double a, double b) { return m != 0 ? b : a; })};
  };
  for (const char* name : {"aten::contiguous", "aten::alias", "aten::detach"}) all[name] = same;
  all["aten::contiguous"] = [](const Call& c) {
    const Array x = c.in("self");
    return Results{x.contiguous() ? x : copy(x)};
  };
  all["aten::clone"] = [](const Call& c) { return Results{copy(c.in("self"))}; };
  for (const char* name : {"aten::to", "aten::type_as", "aten::_to_copy"}) all[name] = cast;
  all["aten::zeros_like"] = [](const Call& c) {
    return Results{Array::filled(c.in("self").shape)};
  };
  all["aten::ones_like"] = [](const Call& c) {
    return Results{Array::filled(c.in("self").shape, 1)};
  };
  all["aten::new_zeros"] = [](const Call& c) { return Results{Array::filled(c.ints("size"))}; };
  all["aten::new_full"] = [](const Call& c) {
    return Results{Array::filled(c.ints("size"), c.real("fill_value"))};
  };
  all["aten::full"] = all["aten::new_full"];
  all["aten::zeros"] = all["aten::new_zeros"];
  all["aten::ones"] = [](const Call& c) { return Results{Array::filled(c.ints("size"), 1)}; };
  all["aten::arange"] = [](const Call& c) {
    Array out = Array::filled({c.integer("end")});
    for (size_t i = 0; i < out.memory->data.size(); ++i)
      out.memory->data[i] = static_cast<double>(i);
    return Results{out};
  };
  all["aten::fill"] = [](const Call& c) {
    return Results{copy(expand(c.in("value"), c.in("self").shape))};
  };
}

}  // namespace nns::test
