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
// Noise of the shape of a tensor, and of its dtype where none is given.
Types noise(const CallView& call) {
  return {{first(call).shape, call.dtype("dtype").value_or(first(call).dtype)}};
}
bool drawn_like(Forward& f, const char* op) {
  f.result(f.grad_call(op, f.in("self"), f.arg("dtype"), random_key(f, f.ordinal()), kSeed, kStep,
                       kMicro, place(f.recording().offset()), place(f.recording().full())));
  return true;
}
bool normal_like(Forward& f) {
  return drawn_like(f, "nnscaler::normal_like");
}
bool uniform_like(Forward& f) {
  return drawn_like(f, "nnscaler::uniform_like");
}
bool bernoulli(Forward& f) {
  if (f.has("p")) return false;  // one number for all elements
  f.result(f.grad_call("nnscaler::bernoulli", f.in("self"), random_key(f, f.ordinal()), kSeed,
                       kStep, kMicro, place(f.recording().offset()), place(f.recording().full())));
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
  records.add(
      {"aten::bernoulli"},
      {.infer = same, .annotations = spatial, .random = true, .counted = true, .constant = true});
  // Draws of a generator depend on the order of elements: never split.
  records.add({"aten::bernoulli.p"}, {.infer = same, .random = true, .constant = true});
  records.add({"aten::rand_like", "aten::randn_like"}, {.infer = noise,
                                                        .annotations = spatial,
                                                        .random = true,
                                                        .counted = true,
                                                        .constant = true,
                                                        .shape_only = true});
  records.add(
      {"nnscaler::dropout"},
      {.infer = same, .annotations = spatial, .random = true, .counted = true, .sliced = true});
  records.add({"nnscaler::bernoulli"}, {.infer = same,
                                        .annotations = spatial,
                                        .random = true,
                                        .counted = true,
                                        .sliced = true,
                                        .constant = true});
  records.add({"nnscaler::uniform_like", "nnscaler::normal_like"}, {.infer = noise,
                                                                    .annotations = spatial,
                                                                    .random = true,
                                                                    .counted = true,
                                                                    .sliced = true,
                                                                    .constant = true});
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
  records.derive("aten::bernoulli", expands(bernoulli));
  records.derive("aten::randn_like", expands(normal_like));
  records.derive("aten::rand_like", expands(uniform_like));
  records.derive("nnscaler::dropout", gradient(dropout_back));

  records.set({"aten::dropout"}, [](Record& r) { r.dense = Dense::kept; });

  records.examples("dropout", "{ f(4, 6), 0.5, false }");
  records.examples("bernoulli",
                   "{ T.ones({ 4, 6 }, { dtype = 'float64' }), { generator = generator } }");
  records.examples("nnscaler::bernoulli", "{ pos(4, 6), 'fc:bernoulli#0', 7, 3, 1 }");
  records.examples("bernoulli.p", "{ pos(4, 6), 0.5, { generator = generator } }");
  records.examples("nnscaler::dropout nnscaler::dropout_mask",
                   "{ f(4, 6), 0.5, 'fc:dropout#0', 7, 3, 1 }");
  records.examples("native_dropout", "{ f(4, 6), 0.5, false }");
  records.examples("native_dropout_backward", "{ f(4, 6), b(4, 6), 2 }");
  records.examples("rand_like randn_like", "{ f(4, 0), { generator = generator } }");
  records.examples("nnscaler::uniform_like nnscaler::normal_like",
                   "{ f(4, 6), nil, 'fc:noise#0', 7, 3, 1, n = 6 }");
}

}  // namespace nns::operators
