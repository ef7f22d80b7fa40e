// Derivatives of normalisations: kernels that keep their statistics.
#include <limits>

#include "operators/family.h"
#include "operators/own.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

using B = Backward;

int64_t product(const Shape& shape, size_t first, size_t last) {
  int64_t n = 1;
  for (size_t i = first; i < last; ++i) n *= shape[i];
  return n;
}

// Whether kernels of ours serve a norm over the last axes.
bool own_serves(const RuleCall& c) {
  const DType dtype = c.type("input").dtype;
  bool all = own_takes(c.e.device(), dtype);
  for (const auto name : {"weight", "bias"})
    if (const TensorType* t = c.maybe_tensor(name)) all = all && t->dtype == dtype;
  return all;
}

bool layer_norm(Forward& f) {
  const bool own = own_serves(f);
  if (!f.training() && !own) return false;
  const auto outs =
      f.e.emit(own ? "nnscaler::layer_norm" : "aten::native_layer_norm", f.in("input"),
               f.ints("normalized_shape"), f.in("weight"), f.in("bias"), f.real("eps", 1e-5));
  f.result(outs[0]);
  f.keep("mean", outs[1]);
  f.keep("rstd", outs[2]);
  return true;
}
void layer_norm_back(B& b) {
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight"), b.needs("bias")};
  const auto outs =
      b.e.emit(own_serves(b) ? "nnscaler::layer_norm_backward" : "aten::native_layer_norm_backward",
               b.grad(), b.in("input"), b.ints("normalized_shape"), b.kept("mean"), b.kept("rstd"),
               b.in("weight"), b.in("bias"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
  b.give("bias", outs[2]);
}

// x / rms(x) · weight, rms over the normalised dimensions.
bool rms_norm(Forward& f) {
  if (!f.training() && !own_serves(f)) return false;
  const DType dtype = f.type("input").dtype;
  const double epsilon = dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                                             : std::numeric_limits<float>::epsilon();
  const auto outs = f.e.emit("nnscaler::rms_norm", f.in("input"), f.arg("normalized_shape"),
                             f.in("weight"), f.real("eps", epsilon));
  f.result(outs[0]);
  f.keep("rstd", outs[1]);
  return true;
}
void rms_norm_back(B& b) {
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight")};
  const auto outs = b.e.emit("nnscaler::rms_norm_backward", b.grad(), b.in("input"),
                             b.arg("normalized_shape"), b.kept("rstd"), b.in("weight"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
}

bool group_norm(Forward& f) {
  if (!f.training()) return false;
  const Shape shape = f.shape("input");
  const auto outs = f.e.emit("aten::native_group_norm", f.in("input"), f.in("weight"), f.in("bias"),
                             shape[0], shape[1], product(shape, 2, shape.size()),
                             f.integer("num_groups"), f.real("eps", 1e-5));
  f.result(outs[0]);
  f.keep("mean", outs[1]);
  f.keep("rstd", outs[2]);
  return true;
}
void group_norm_back(B& b) {
  const Shape shape = b.shape("input");
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight"), b.needs("bias")};
  // The kernel reads memory in order: a gradient that is expanded or permuted is laid out first.
  const Ref g = b("aten::contiguous", b.grad());
  const auto outs = b.e.emit("aten::native_group_norm_backward", g, b.in("input"), b.kept("mean"),
                             b.kept("rstd"), b.in("weight"), shape[0], shape[1],
                             product(shape, 2, shape.size()), b.integer("num_groups"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
  b.give("bias", outs[2]);
}

// In training mode the call has the new running statistics as further outputs, behind those of the
// batch where it gives these too.
bool batch_norm(Forward& f) {
  const bool native = f.base() != "aten::batch_norm";
  const bool batch = f.boolean("training"), running = f.has("running_mean");
  if (!f.training() && !(batch && running)) return false;
  std::vector<Ref> outs;
  if (batch && running) {
    outs = f.e.emit("aten::_native_batch_norm_legit_functional", f.in("input"), f.in("weight"),
                    f.in("bias"), f.in("running_mean"), f.in("running_var"), true,
                    f.real("momentum"), f.real("eps"));
    f.results(native ? outs : std::vector<Ref>{outs[0], outs[3], outs[4]});
  } else {
    outs = f.e.emit("aten::native_batch_norm", f.in("input"), f.in("weight"), f.in("bias"),
                    f.in("running_mean"), f.in("running_var"), batch, f.real("momentum"),
                    f.real("eps"));
    f.results(native ? outs : std::vector<Ref>{outs[0]});
  }
  f.keep("mean", outs[1]);
  f.keep("invstd", outs[2]);
  return true;
}
void batch_norm_back(B& b) {
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight"), b.needs("bias")};
  const auto outs =
      b.e.emit("aten::native_batch_norm_backward", b.grad(), b.in("input"), b.in("weight"),
               b.in("running_mean"), b.in("running_var"), b.kept("mean"), b.kept("invstd"),
               b.boolean("training"), b.real("eps"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
  b.give("bias", outs[2]);
}

// Each channel of each sample is a group of its own; statistics move by their mean over the batch.
bool instance_norm(Forward& f) {
  const bool running = f.has("running_mean");
  if (!f.boolean("use_input_stats")) {
    f.result(f.grad_call("aten::batch_norm", f.in("input"), f.in("weight"), f.in("bias"),
                         f.in("running_mean"), f.in("running_var"), false, f.real("momentum"),
                         f.real("eps"), false));
    return true;
  }
  if (!f.training() && !running) return false;
  const Ref input = f.in("input");
  const Shape shape = f.shape("input");
  f.result(f.grad_call("aten::group_norm", input, shape[1], f.in("weight"), f.in("bias"),
                       f.real("eps"), false));
  if (!running) return true;
  const double momentum = f.real("momentum");
  const Ref rows = f.e.reshape(input, {shape[0], shape[1], product(shape, 2, shape.size())});
  const auto moved = [&](const char* name, Ref each) {
    const Ref now = f("aten::mean.dim", each, Shape{0}, false);
    return f.e.add(f.e.mul(f.in(name), 1 - momentum), f.e.mul(now, momentum));
  };
  f.result(moved("running_mean", f("aten::mean.dim", rows, Shape{2}, false)));
  f.result(moved("running_var", f("aten::var.correction", rows, Shape{2}, 1.0, false)));
  return true;
}

// --- parts
// ------------------------------------------------------------------------------------------

// Batch norm in training whose batch (or positions) lie on several devices.
std::optional<std::vector<Ref>> batch_norm_part(Part& p) {
  if (!p.boolean("training")) return std::nullopt;
  const Shape ranks = p.placed.ranks_of("input", [](int64_t dim) { return dim != 1; });
  if (ranks.empty()) return std::nullopt;
  const Shape shape = p.shape("input"), whole = p.placed.whole("input");
  Shape over, column(shape.size(), 1);
  for (size_t d = 0; d < shape.size(); ++d)
    if (d != 1) over.push_back(static_cast<int64_t>(d));
  column[1] = shape[1];
  const double n = static_cast<double>(numel(whole)) / static_cast<double>(whole[1]);
  const auto average = [&](Ref x) {
    return p.grad("aten::div.Scalar",
                  p.summed(p.grad("aten::sum.dim_IntList", x, over, true), ranks, true), n);
  };
  const Ref mean = average(p.in("input"));
  const Ref centred = p.grad("aten::sub.Tensor", p.in("input"), mean);
  const Ref variance = average(p.grad("aten::mul.Tensor", centred, centred));
  const Ref scale =
      p.grad("aten::rsqrt", p.grad("aten::add.Scalar", variance, p.real("eps", 1e-5)));
  Ref out = p.grad("aten::mul.Tensor", centred, scale);
  if (p.has("weight"))
    out = p.grad("aten::mul.Tensor", out, p.grad("aten::reshape", p.in("weight"), column));
  if (p.has("bias"))
    out = p.grad("aten::add.Tensor", out, p.grad("aten::reshape", p.in("bias"), column));
  std::vector<Ref> outs{out};
  if (!p.has("running_mean")) return outs;
  const double momentum = p.real("momentum", 0.1);
  const auto moved = [&](const char* name, Ref now, double factor) {
    now = p.e.mul(p.e.reshape(now, {shape[1]}), factor * momentum);
    return p.e.add(p.e.mul(p.in(name), 1 - momentum), now);
  };
  outs.push_back(moved("running_mean", mean, 1));
  outs.push_back(moved("running_var", variance, n / (n - 1)));
  return outs;
}

}  // namespace

void add_norm_derivatives(Records& records) {
  records.derive("aten::layer_norm", rewrite(layer_norm, layer_norm_back));
  records.derive("aten::rms_norm", rewrite(rms_norm, rms_norm_back));
  records.derive("aten::group_norm", rewrite(group_norm, group_norm_back));
  records.derive("aten::batch_norm", rewrite(batch_norm, batch_norm_back));
  records.derive("aten::native_batch_norm", rewrite(batch_norm, batch_norm_back));
  records.derive("aten::instance_norm", expands(instance_norm));

  records.set({"aten::batch_norm"}, [](Record& r) {
    r.assisted = [](const CallView& call, const annotate::Split& split) {
      return call.boolean("training") && !cuts_first(split, 1);
    };
    r.part = batch_norm_part;
  });
}

}  // namespace nns::operators
