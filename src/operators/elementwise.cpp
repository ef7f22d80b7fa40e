// Records of operators that work element by element: unary, binary with broadcasting, comparisons,
// choices, conversions of type, and the derivatives of activations.
#include "operators/family.h"

namespace nns::operators {
namespace {

Types same_bool(const CallView& call) {
  return {{first(call).shape, DType::boolean}};
}
Types to_real(const CallView& call) {
  return {{first(call).shape, real_part(first(call).dtype)}};
}
Types real_angle(const CallView& call) {
  return {{first(call).shape, to_float(real_part(first(call).dtype))}};
}
Types broadcast_float(const CallView& call) {
  const TensorType t = broadcast_promoted(call)[0];
  return {{t.shape, to_float(t.dtype)}};
}
// True division gives floats; rounding keeps the promoted type.
Types divide(const CallView& call) {
  return call.has("rounding_mode") ? broadcast_promoted(call) : broadcast_float(call);
}

Types where(const CallView& call) {
  const TensorType& condition = call.tensor("condition");
  if (condition.dtype != DType::boolean && condition.dtype != DType::u8)
    call.fail(fmt::format("condition is {}; expected bool", to_string(condition)));
  const DType dtype = result_type({operand(call, "self"), operand(call, "other")});
  return {{broadcast_all(call, call.operands()), dtype}};
}

Types clamp(const CallView& call) {
  const DType dtype =
      result_type({operand(call, "self"), operand(call, "min"), operand(call, "max")});
  return {{broadcast_all(call, call.operands()), dtype}};
}

// All tensors broadcast; the type is that of the first (masked_fill, lerp, addcmul, …).
Types broadcast_first(const CallView& call) {
  return {{broadcast_all(call, call.operands()), first(call).dtype}};
}
// Several inputs of any dtype promoted (addcmul, addcdiv).
// Each tensor in the shape over which all of them broadcast.
Types broadcast_each(const CallView& call) {
  const Shape shape = broadcast_all(call, call.operands());
  Types out;
  for (const TensorType* t : call.operands()) out.push_back({shape, t->dtype});
  return out;
}
Types broadcast_three(const CallView& call) {
  std::vector<Operand> all;
  for (const TensorType* t : call.operands()) all.push_back({t, {}});
  return {{broadcast_all(call, call.operands()), result_type(all)}};
}

// copy and fill write into the first tensor's shape and type.
Types overwrite(const CallView& call) {
  const TensorType& self = first(call);
  for (const TensorType* t : call.operands()) {
    const auto shape = broadcast(self.shape, t->shape);
    if (!shape || *shape != self.shape) misfit(call, self, *t, "a source that broadcasts to self");
  }
  return {self};
}

// Gradients of activations: grad_output and one or two tensors of its shape.
Types activation_gradient(const CallView& call) {
  const auto operands = call.operands();
  for (const TensorType* t : operands)
    if (t->shape != operands[0]->shape) misfit(call, *operands[0], *t, "equal shapes");
  return {*operands.at(0)};
}

Types cast(const CallView& call) {
  const TensorType& self = first(call);
  if (const TensorType* other = call.maybe_tensor("other")) return {{self.shape, other->dtype}};
  return {{self.shape, call.dtype("dtype").value_or(self.dtype)}};
}

// `other` gives its dtype only.
Texts cast_text(const CallView& call) {
  const std::string dims = join_dims(letters(first(call).shape.size()));
  return {dims + (call.maybe_tensor("other") != nullptr ? ", ? -> " : " -> ") + dims};
}

Types view_as_real(const CallView& call) {
  const TensorType& self = first(call);
  if (!is_complex(self.dtype)) call.fail(to_string(self) + " is not complex");
  TensorType out{self.shape, real_part(self.dtype)};
  out.shape.push_back(2);
  return {out};
}
Types view_as_complex(const CallView& call) {
  const TensorType& self = first(call);
  if (self.shape.empty() || self.shape.back() != 2 || !is_floating(self.dtype))
    call.fail(to_string(self) + "; expected a floating tensor whose last size is 2");
  TensorType out{self.shape, complex_of(self.dtype)};
  out.shape.pop_back();
  return {out};
}
Texts view_as_real_text(const CallView& call) {
  DimTexts dims = letters(first(call).shape.size()), out = dims;
  out.push_back("2");
  return {annotation({dims}, {out})};
}
Texts view_as_complex_text(const CallView& call) {
  DimTexts dims = letters(first(call).shape.size() - 1), in = dims;
  in.push_back("2");
  return {annotation({in}, {dims})};
}
Types polar(const CallView& call) {
  const auto operands = call.operands();
  return {{broadcast_all(call, operands), complex_of(operands.at(0)->dtype)}};
}
Types make_complex(const CallView& call) {
  return polar(call);
}

Types glu(const CallView& call) {
  TensorType out = first(call);
  const size_t i = axis(call, call.integer("dim", -1), out.shape.size());
  if (out.shape.empty() || out.shape[i] % 2 != 0)
    call.fail(fmt::format("{} cannot be halved along dimension {}", to_string(out), i));
  out.shape[i] /= 2;
  return {out};
}
Texts glu_text(const CallView& call) {
  const Shape& shape = first(call).shape;
  const size_t i = axis(call, call.integer("dim", -1), shape.size());
  DimTexts in = letters(shape.size()), out = in;
  in[i] = std::to_string(shape[i]);
  out[i] = std::to_string(shape[i] / 2);
  return {annotation({in}, {out})};
}

// weight has one element, or one per channel (dimension 1).
Texts prelu_text(const CallView& call) {
  const size_t rank = first(call).shape.size();
  const DimTexts dims = letters(rank);
  const bool each = rank > 1 && numel(call.tensor("weight").shape) != 1;
  return {annotation({dims, {each ? dims[1] : "1"}}, {dims})};
}

Types glu_backward(const CallView& call) {
  return {call.tensor("self")};
}
Texts glu_backward_text(const CallView& call) {
  const TensorType &grad = call.tensor("grad_output"), &self = call.tensor("self");
  const size_t i = axis(call, call.integer("dim"), self.shape.size());
  DimTexts small = letters(self.shape.size()), large = small;
  small[i] = std::to_string(grad.shape.at(i));
  large[i] = std::to_string(self.shape[i]);
  return {annotation({small, large}, {large})};
}

double activation_flops(const CallView& call) {  // transcendental: about eight a value
  return 8.0 * static_cast<double>(numel(first(call).shape));
}

// --- what results keep of their operands (Record::keeps)
// -------------------------------------------

using Kept = std::optional<double>;

Kept times(Kept a, Kept by) {
  return a && by ? Kept(*a * *by) : std::nullopt;
}
Kept as_self(const CallView&, size_t, const HeldBy& held) {
  return held("self");
}
// ±self ± other, of which the second (of rsub the first) is scaled by alpha.
template <int kSelf, int kOther>
Kept keeps_sum(const CallView& call, size_t, const HeldBy& held) {
  const Kept self = held("self"), other = held("other");
  if (!self || !other) return std::nullopt;
  const double alpha = number_of(call, "alpha").value_or(1);
  return kSelf * (kSelf < 0 ? alpha : 1) * *self + kOther * (kSelf < 0 ? 1 : alpha) * *other;
}
Kept keeps_product(const CallView& call, size_t, const HeldBy& held) {
  if (const Kept by = number_of(call, "other")) return times(held("self"), by);
  return times(held("other"), number_of(call, "self"));
}
Kept keeps_quotient(const CallView& call, size_t, const HeldBy& held) {
  const Kept self = held("self"), by = number_of(call, "other");
  return self && by && !call.has("rounding_mode") ? Kept(*self / *by) : std::nullopt;
}
Kept keeps_lerp(const CallView& call, size_t, const HeldBy& held) {
  const Kept self = held("self"), end = held("end"), weight = number_of(call, "weight");
  if (!self || !end || !weight) return std::nullopt;
  return *self * (1 - *weight) + *end * *weight;
}
// self + tensor1 · tensor2 and the like.
Kept keeps_beside(const CallView&, size_t, const HeldBy& held) {
  return held("tensor1") == 0.0 && held("tensor2") == 0.0 ? held("self") : std::nullopt;
}

}  // namespace

void add_elementwise(Records& records) {
  // --- unary ---
  records.add({"aten::neg", "aten::sign", "aten::sgn", "aten::ceil", "aten::floor", "aten::round",
               "aten::trunc", "aten::frac", "aten::relu", "aten::relu6", "aten::square",
               "aten::bitwise_not", "aten::nan_to_num", "aten::hardtanh", "aten::threshold",
               "aten::conj_physical"},
              {.infer = same, .annotations = spatial});
  records.add({"aten::exp",   "aten::exp2",       "aten::expm1", "aten::log",     "aten::log2",
               "aten::log10", "aten::log1p",      "aten::sqrt",  "aten::rsqrt",   "aten::sin",
               "aten::cos",   "aten::tan",        "aten::asin",  "aten::acos",    "aten::atan",
               "aten::sinh",  "aten::cosh",       "aten::tanh",  "aten::sigmoid", "aten::erf",
               "aten::erfc",  "aten::reciprocal", "aten::logit", "aten::asinh",   "aten::acosh",
               "aten::atanh", "aten::digamma",    "aten::lgamma"},
              {.infer = same_float, .annotations = spatial, .flops = activation_flops});
  records.add({"aten::gelu", "aten::silu", "aten::mish", "aten::elu", "aten::selu", "aten::celu",
               "aten::leaky_relu", "aten::softplus", "aten::softshrink", "aten::hardshrink",
               "aten::hardswish", "aten::hardsigmoid", "aten::log_sigmoid", "nnscaler::gelu"},
              {.infer = same, .annotations = spatial, .flops = activation_flops});
  records.add({"aten::abs", "aten::real", "aten::imag"},
              {.infer = to_real, .annotations = spatial});
  records.add({"aten::angle"}, {.infer = real_angle, .annotations = spatial});
  records.add({"aten::isnan", "aten::isinf", "aten::isfinite", "aten::logical_not"},
              {.infer = same_bool, .annotations = spatial, .constant = true});
  records.add({"aten::glu"}, {.infer = glu, .annotations = glu_text, .flops = activation_flops});
  records.add({"aten::prelu"}, {.infer = same, .annotations = prelu_text});

  // --- two or three tensors, or a tensor and a number ---
  records.add(
      {"aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::maximum", "aten::minimum",
       "aten::max.other", "aten::min.other", "aten::fmod", "aten::remainder", "aten::floor_divide",
       "aten::pow", "aten::bitwise_and", "aten::bitwise_or", "aten::bitwise_xor", "aten::__and__",
       "aten::__or__", "aten::__xor__"},
      {.infer = broadcast_promoted, .annotations = spatial});
  records.add({"aten::div", "aten::divide", "aten::true_divide"},
              {.infer = divide, .annotations = spatial});
  records.add({"aten::atan2", "aten::logaddexp"},
              {.infer = broadcast_float, .annotations = spatial, .flops = activation_flops});
  records.add({"aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge",
               "aten::logical_and", "aten::logical_or", "aten::logical_xor"},
              {.infer = broadcast_bool, .annotations = spatial, .constant = true});
  records.add({"aten::where"}, {.infer = where, .annotations = spatial});
  records.add({"aten::clamp", "aten::clamp_min", "aten::clamp_max", "aten::clip"},
              {.infer = clamp, .annotations = spatial});
  records.add({"aten::masked_fill", "aten::lerp"},
              {.infer = broadcast_first, .annotations = spatial});
  records.add({"aten::addcmul", "aten::addcdiv"},
              {.infer = broadcast_three, .annotations = spatial});
  records.add({"aten::broadcast_tensors"}, {.infer = broadcast_each, .annotations = spatial});
  records.add({"aten::copy", "aten::fill"}, {.infer = overwrite, .annotations = spatial});
  records.add({"aten::zero"}, {.infer = same, .annotations = spatial, .constant = true});

  // --- copies and conversions ---
  records.add({"aten::positive"},
              {.infer = same, .annotations = spatial, .view = View::same, .identity = true});
  records.add({"aten::clone", "aten::lift_fresh_copy"},
              {.infer = same, .annotations = spatial, .view = View::copy});
  records.add({"aten::lift_fresh"},
              {.infer = same, .annotations = spatial, .view = View::same, .identity = true});
  records.add({"aten::contiguous"},
              {.infer = same, .annotations = spatial, .view = View::dense, .identity = true});
  records.add({"aten::alias"},
              {.infer = same, .annotations = spatial, .view = View::same, .identity = true});
  records.add({"aten::detach"},
              {.infer = same, .annotations = spatial, .view = View::opaque, .constant = true});
  records.add({"aten::to", "aten::type_as"},
              {.infer = cast, .annotations = cast_text, .view = View::perhaps, .identity = true});
  records.add({"aten::_to_copy"}, {.infer = cast, .annotations = cast_text, .view = View::copy});
  records.add({"aten::view_as_real"},
              {.infer = view_as_real, .annotations = view_as_real_text, .view = View::real});
  records.add(
      {"aten::view_as_complex"},
      {.infer = view_as_complex, .annotations = view_as_complex_text, .view = View::complex});
  records.add({"aten::polar"}, {.infer = polar, .annotations = spatial});
  records.add({"aten::complex"}, {.infer = make_complex, .annotations = spatial});

  // --- derivatives of activations ---
  records.add({"aten::threshold_backward", "aten::gelu_backward", "aten::silu_backward",
               "aten::sigmoid_backward", "aten::tanh_backward", "aten::elu_backward",
               "aten::leaky_relu_backward", "aten::softplus_backward", "aten::hardtanh_backward",
               "aten::hardswish_backward", "aten::hardsigmoid_backward", "aten::logit_backward",
               "aten::mish_backward", "nnscaler::gelu_backward"},
              {.infer = activation_gradient, .annotations = spatial, .flops = activation_flops});
  records.add({"aten::glu_backward"}, {.infer = glu_backward, .annotations = glu_backward_text});

  records.set({"aten::contiguous"}, [](Record& r) { r.dense = Dense::always; });
  records.set({"aten::add",   "aten::sub",         "aten::mul",   "aten::div",  "aten::neg",
               "aten::pow",   "aten::exp",         "aten::log",   "aten::sqrt", "aten::rsqrt",
               "aten::relu",  "aten::gelu",        "aten::silu",  "aten::tanh", "aten::sigmoid",
               "aten::where", "aten::masked_fill", "aten::clone", "aten::to",   "aten::clamp",
               "aten::alias"},
              [](Record& r) { r.dense = Dense::kept; });

  records.set({"aten::zero"}, [](Record& r) { r.overwrite = Overwrite{}; });
  records.set({"aten::fill"}, [](Record& r) { r.overwrite = Overwrite{"value"}; });
  records.set({"aten::copy"}, [](Record& r) { r.overwrite = Overwrite{"src", true}; });
  records.set({"aten::add"}, [](Record& r) { r.kind = Kind::sum; });
  records.set({"aten::clone", "aten::contiguous", "aten::alias", "aten::detach", "aten::to",
               "aten::_to_copy"},
              [](Record& r) { r.keeps = as_self; });
  records.set({"aten::neg"}, [](Record& r) {
    r.keeps = [](const CallView&, size_t, const HeldBy& held) { return times(held("self"), -1); };
  });
  records.set({"aten::add"}, [](Record& r) { r.keeps = keeps_sum<1, 1>; });
  records.set({"aten::sub"}, [](Record& r) { r.keeps = keeps_sum<1, -1>; });
  records.set({"aten::rsub"}, [](Record& r) { r.keeps = keeps_sum<-1, 1>; });
  records.set({"aten::mul"}, [](Record& r) { r.keeps = keeps_product; });
  records.set({"aten::div"}, [](Record& r) { r.keeps = keeps_quotient; });
  records.set({"aten::lerp"}, [](Record& r) { r.keeps = keeps_lerp; });
  records.set({"aten::addcmul", "aten::addcdiv"}, [](Record& r) { r.keeps = keeps_beside; });

  records.examples("neg sign sgn square positive nan_to_num relu relu6 hardtanh",
                   "{ f(4, 6) }, { i(9, 4) }, { f32() }");
  records.examples("ceil floor round trunc frac", "{ f(4, 6) }");
  records.examples("conj_physical real imag angle", "{ complex(4, 6) }");
  records.examples("bitwise_not", "{ i(9, 4, 6) }, { b(4) }");
  records.examples("threshold", "{ f(4, 6), 0.1, -1 }");
  records.examples(
      "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid asinh sinh cosh erf "
      "erfc reciprocal digamma lgamma atan",
      "{ pos(4, 6) }, { i(9, 4) + 1 }, { pos() }");
  records.examples("asin acos atanh logit", "{ pos(4, 6) }");
  records.examples("acosh", "{ pos(4, 6) + 1 }");
  records.examples("gelu nnscaler::gelu", "{ f(4, 6) }, { f(4, 6), { approximate = 'tanh' } }");
  records.examples(
      "silu mish elu selu celu leaky_relu softplus softshrink hardshrink hardswish hardsigmoid "
      "log_sigmoid",
      "{ f(4, 6) }, { f32(3) }");
  records.examples("abs", "{ f(4, 6) }, { complex(4, 6) }, { i(9, 4) }");
  records.examples("isnan isinf isfinite logical_not", "{ f(4, 6) }, { i(2, 4) }");
  records.examples("glu", "{ f(4, 6) }, { f(4, 6), 0 }");
  records.examples("prelu", "{ f(2, 4, 6), f(4) }, { f(2, 4), f(1) }");
  records.examples(
      "add sub mul maximum minimum fmod remainder logaddexp atan2",
      "{ f(4, 6), f(4, 6) }, { f(4, 6), f(6) }, { f(2, 1, 6), f(4, 1) }, { f(4), f32() }");
  records.examples(
      "add sub mul",
      "{ i(9, 4), 2 }, { i(9, 4), 1.5 }, { f(4), 2 }, { i(9, 4), T.scalar(2.5, 'float64') }");
  records.examples("add mul", "{ i(9, 4), b(4) }, { b(4), b(4) }, { b(4), true }");
  records.examples("rsub", "{ f(4, 6), f(6) }, { f(4), 2 }");
  records.examples("max.other", "{ op = 'max.other', f(4, 6), f(6) }");
  records.examples("min.other", "{ op = 'min.other', f(4, 6), f(6) }");
  records.examples("floor_divide", "{ i(9, 4), 2 }, { f(4, 6), pos(6) }");
  records.examples(
      "pow",
      "{ pos(4, 6), 2 }, { pos(4, 6), f(6) }, { i(9, 4), 2 }, { op = 'pow.Scalar', 2, f(4) }");
  records.examples("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__",
                   "{ b(4, 6), b(6) }, { i(9, 4), 3 }");
  records.examples("div divide true_divide", "{ f(4, 6), pos(6) }, { i(9, 4), 2 }, { f(4), 2 }");
  records.examples("div divide", "{ i(9, 4), 2, { rounding_mode = 'floor' } }");
  records.examples("eq ne lt le gt ge", "{ i(3, 4, 6), i(3, 6) }, { f(4), 0 }, { f(4), f32(4) }");
  records.examples("logical_and logical_or logical_xor", "{ b(4, 6), b(6) }, { i(2, 4), i(2, 4) }");
  records.examples("where",
                   "{ b(4, 6), f(4, 6), f(6) }, { b(4, 6), f(4, 6), 0 }, { b(4), 1.5, f32(4) }");
  records.examples("clamp clip",
                   "{ f(4, 6), -0.5, 0.5 }, { n = 3, f(4), nil, 0.5 }, { i(9, 4), 1, 5.5 }, { f(4, "
                   "6), f(6), f(4, 6) + 3 }");
  records.examples("clamp_min clamp_max", "{ f(4, 6), 0.1 }, { f(4, 6), f(6) }");
  records.examples("masked_fill",
                   "{ f(4, 6), b(4, 6), 0 }, { f(4, 6), b(6), T.scalar(1.5, 'float64') }");
  records.examples("lerp", "{ f(4, 6), f(4, 6), 0.3 }, { f(4, 6), f(6), pos(4, 6) }");
  records.examples("addcmul addcdiv",
                   "{ f(4, 6), f(4, 6), pos(6) }, { f(4), f(4), pos(4), { value = 2 } }");
  records.examples(
      "broadcast_tensors",
      "{ { f(4, 6), f(6) } }, { { f(4, 6), f(4, 6) } }, { { f(1, 6), f(4, 1), f() } }");
  records.examples("copy", "{ f(4, 6), f(6) }, { f(4), f32(4) }");
  records.examples("fill", "{ f(4, 6), 1.5 }, { f(4), T.scalar(2) }");
  records.examples("zero", "{ f(4, 6) }");
  records.examples("clone contiguous alias lift_fresh lift_fresh_copy detach", "{ f(4, 6) }");
  records.examples(
      "to", "{ f(4, 6), 'float32' }, { op = 'to.dtype', i(9, 4), 'float64' }, { f(4), f32(2) }");
  records.examples("type_as", "{ f(4, 6), f32(2) }");
  records.examples("_to_copy", "{ f(4, 6), { dtype = 'float32' } }, { f(4) }");
  records.examples("view_as_real", "{ complex(4, 6) }");
  records.examples("view_as_complex", "{ f(4, 6, 2) }");
  records.examples("polar complex", "{ pos(4, 6), pos(4, 6) }");
  records.examples("threshold_backward", "{ f(4, 6), f(4, 6), 0 }");
  records.examples("gelu_backward nnscaler::gelu_backward",
                   "{ f(4, 6), f(4, 6) }, { f(4, 6), f(4, 6), { approximate = 'tanh' } }");
  records.examples("silu_backward hardswish_backward hardsigmoid_backward mish_backward",
                   "{ f(4, 6), f(4, 6) }");
  records.examples("sigmoid_backward tanh_backward", "{ f(4, 6), pos(4, 6) }");
  records.examples("logit_backward", "{ f(4, 6), pos(4, 6) }");
  records.examples("elu_backward", "{ f(4, 6), 1, 1, 1, false, f(4, 6) }");
  records.examples("leaky_relu_backward", "{ f(4, 6), f(4, 6), 0.1, false }");
  records.examples("softplus_backward", "{ f(4, 6), f(4, 6), 1, 20 }");
  records.examples("hardtanh_backward", "{ f(4, 6), f(4, 6), -1, 1 }");
  records.examples("glu_backward", "{ f(4, 3), f(4, 6), 1 }");
}

}  // namespace nns::operators
