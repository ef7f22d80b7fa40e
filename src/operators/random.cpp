// Records of operators that draw random numbers, but for factories and attention.
#include "operators/random.h"

#include "operators/family.h"

namespace nns::operators {
namespace {

Types mask(const CallView& call) {
  return {{first(call).shape, DType::boolean}};
}
Types native_dropout(const CallView& call) {
  return {first(call), {first(call).shape, DType::boolean}};
}

bool dropout(Forward& f) {
  const double p = f.real("p");
  if (!f.boolean("train") || p == 0.0)
    f.result(f.in("input"));
  else
    f.result(f.grad_call("nnscaler::dropout", f.in("input"), p, random_key(f, f.ordinal()), kSeed,
                         kStep, kMicro, place(f.recording().offset()),
                         place(f.recording().full())));
  return true;
}
// Linear in its input: the same mask on the gradient.
void dropout_back(Backward& b) {
  b.give("input", b("nnscaler::dropout", b.grad(), b.arg("p"), b.arg("key"), b.arg("seed"),
                    b.arg("step"), b.arg("micro"), b.arg("offset"), b.arg("full")));
}

}  // namespace

std::string random_key(const RuleCall& call, int ordinal) {
  const std::string_view base = call.base();
  return fmt::format("{}:{}#{}", call.e.module(), base.substr(base.find("::") + 2), ordinal);
}
Arg place(const Shape& where) {
  return where.empty() ? Arg() : Arg(where);
}

void add_random(Records& records) {
  records.add({"aten::dropout"},
              {.infer = same, .annotations = spatial, .random = true, .counted = true});
  // Draws of a generator depend on the order of elements: never split.
  records.add({"aten::bernoulli", "aten::bernoulli.p"}, {.infer = same, .random = true});
  records.add(
      {"nnscaler::dropout"},
      {.infer = same, .annotations = spatial, .random = true, .counted = true, .sliced = true});
  records.add({"nnscaler::dropout_mask"}, {.infer = mask,
                                           .annotations = spatial,
                                           .random = true,
                                           .counted = true,
                                           .sliced = true,
                                           .constant = true});
  records.add({"aten::native_dropout"},
              {.infer = native_dropout, .annotations = spatial, .random = true});
  records.add({"aten::native_dropout_backward"}, {.infer = same, .annotations = spatial});

  records.derive("aten::dropout", expands(dropout));
  records.derive("nnscaler::dropout", gradient(dropout_back));

  records.set({"aten::dropout"}, [](Record& r) { r.dense = Dense::kept; });
}

}  // namespace nns::operators
