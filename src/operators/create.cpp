// Records of operators that make tensors.
#include <cmath>

#include "operators/family.h"

namespace nns::operators {
namespace {

DType number_dtype(const CallView& call, std::string_view name) {
  const auto operand_of = operand(call, name);
  const DType d = operand_of.number.value_or(DType::f64);
  return d == DType::f64 ? kDefaultFloat : d;
}

Shape checked(const CallView& call, const Shape& size) {
  for (const int64_t n : size)
    if (n < 0) call.fail(fmt::format("size {}; expected no negative number", to_string(size)));
  return size;
}

Types fresh(const CallView& call) {  // zeros, ones, empty, rand
  return {{checked(call, call.ints("size")), call.dtype("dtype").value_or(kDefaultFloat)}};
}
Types full(const CallView& call) {
  return {{checked(call, call.ints("size")),
           call.dtype("dtype").value_or(number_dtype(call, "fill_value"))}};
}
Types random_integers(const CallView& call) {
  return {{checked(call, call.ints("size")), call.dtype("dtype").value_or(DType::i64)}};
}
Types like(const CallView& call) {
  return {{first(call).shape, call.dtype("dtype").value_or(first(call).dtype)}};
}
Types fresh_as(const CallView& call) {  // new_zeros
  return {{checked(call, call.ints("size")), call.dtype("dtype").value_or(first(call).dtype)}};
}
Types scalar(const CallView& call) {
  return {{{}, call.dtype("dtype").value_or(kDefaultFloat)}};
}
Types arange(const CallView& call) {
  const double start = call.real("start", 0), end = call.real("end"), step = call.real("step", 1);
  if (step == 0 || (end - start) / step < 0)
    call.fail(
        fmt::format("from {} to {} by {}; expected a step towards the end", start, end, step));
  bool integral = true;
  for (const auto name : {"start", "end", "step"}) {
    const auto number = operand(call, name).number;
    if (number && *number == DType::f64) integral = false;
  }
  const auto count = static_cast<int64_t>(std::ceil((end - start) / step));
  return {{{count}, call.dtype("dtype").value_or(integral ? DType::i64 : kDefaultFloat)}};
}
Types linspace(const CallView& call) {
  return {{{call.integer("steps")}, call.dtype("dtype").value_or(kDefaultFloat)}};
}
Types eye(const CallView& call) {
  const int64_t n = call.integer("n");
  return {{checked(call, {n, call.integer("m", n)}), call.dtype("dtype").value_or(kDefaultFloat)}};
}

}  // namespace

// What has no tensor input is replicated: making it again costs less than moving it.
void add_creation(Records& records) {
  records.add({"aten::zeros", "aten::ones", "aten::empty"},
              {.infer = fresh, .size_arg = "size", .constant = true});
  records.add({"aten::full"}, {.infer = full, .size_arg = "size", .constant = true});
  records.add({"aten::rand", "aten::randn"}, {.infer = fresh, .random = true, .constant = true});
  records.add({"aten::randint"}, {.infer = random_integers, .random = true, .constant = true});
  records.add({"aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like"},
              {.infer = like, .annotations = spatial, .constant = true});
  records.add({"aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty"},
              {.infer = fresh_as, .size_arg = "size", .constant = true});
  records.add({"aten::scalar_tensor"}, {.infer = scalar, .constant = true});
  records.add({"aten::arange"}, {.infer = arange, .constant = true});
  records.add({"aten::linspace"}, {.infer = linspace, .constant = true});
  records.add({"aten::eye"}, {.infer = eye, .constant = true});

  records.set({"aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like",
               "aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty"},
              [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like",
               "aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty"},
              [](Record& r) { r.shape_only = true; });

  records.examples("zeros ones", "{ { 4, 6 } }, { { 4 }, { dtype = 'int64' } }, { {} }");
  records.examples("empty", "{ { 4, 6 }, types_only = true }");
  records.examples("full", "{ { 4, 6 }, 1.5 }, { { 4 }, 2 }, { { 4 }, true }");
  records.examples("rand randn", "{ { 4, 6 }, { generator = generator } }");
  records.examples("randint", "{ 5, { 4, 6 }, { generator = generator } }");
  records.examples("zeros_like ones_like", "{ f(4, 6) }, { i(9, 4), { dtype = 'float32' } }");
  records.examples("empty_like", "{ f(4, 6), types_only = true }");
  records.examples("full_like", "{ f(4, 6), 2 }");
  records.examples("new_empty", "{ f(4, 6), { 2, 3 }, types_only = true }");
  records.examples("new_zeros new_ones",
                   "{ f(4, 6), { 2, 3 } }, { f(4), { 2 }, { dtype = 'int64' } }");
  records.examples("new_full", "{ f(4, 6), { 2, 3 }, 1.5 }");
  records.examples("scalar_tensor", "{ 1.5 }, { 2, { dtype = 'int64' } }");
  records.examples("arange", "{ 5 }, { 1, 7, 2 }, { op = 'arange.start', 2, 7 }, { 0.5, 2, 0.4 }");
  records.examples("linspace", "{ 0, 1, 5 }");
  records.examples("eye", "{ 4 }, { op = 'eye.m', 4, 6 }");
}

}  // namespace nns::operators
