// Derivatives of layers: embedding, normalisation, dropout, attention.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lower/rule.h"
#include "lower/tape.h"

namespace nns::lower {
namespace {

using B = Backward;

int64_t product(const Shape& shape, size_t first, size_t last) {
  int64_t n = 1;
  for (size_t i = first; i < last; ++i) n *= shape[i];
  return n;
}

void embedding(B& b) {
  b.give("weight", b.e.emit_typed({b.type("weight")}, "aten::embedding_dense_backward", b.grad(),
                                  b.in("indices"), b.shape("weight")[0],
                                  b.integer("padding_idx", -1), b.boolean("scale_grad_by_freq"))
                       .front());
}

// --- gelu
// -----------------------------------------------------------------------------------------

// Where our kernel is better than ATen's.
std::string gelu_kernel(const CallContext& c) {
  return c.e.device() == "cpu" && c.dtype("self") == DType::f32 ? "nnscaler::gelu" : "aten::gelu";
}
bool gelu(Forward& f) {
  const std::string kernel = gelu_kernel(f);
  if (kernel == f.op()) return false;
  f.result(f(kernel, f.in("self"), f.text("approximate", "none")));
  return true;
}
void gelu_back(B& b) {
  b.give("self",
         b(gelu_kernel(b) + "_backward", b.grad(), b.in("self"), b.text("approximate", "none")));
}

// --- normalisation ------------------------------------------------------------------------------

bool layer_norm(Forward& f) {
  if (!f.training()) return false;
  const auto outs = f.e.emit("aten::native_layer_norm", f.in("input"), f.ints("normalized_shape"),
                             f.in("weight"), f.in("bias"), f.real("eps", 1e-5));
  f.result(outs[0]);
  f.keep("mean", outs[1]);
  f.keep("rstd", outs[2]);
  return true;
}
void layer_norm_back(B& b) {
  const std::vector<bool> mask = {b.needs("input"), b.needs("weight"), b.needs("bias")};
  const auto outs = b.e.emit("aten::native_layer_norm_backward", b.grad(), b.in("input"),
                             b.ints("normalized_shape"), b.kept("mean"), b.kept("rstd"),
                             b.in("weight"), b.in("bias"), mask);
  b.give("input", outs[0]);
  b.give("weight", outs[1]);
  b.give("bias", outs[2]);
}

// x / rms(x) · weight, rms over the normalised dimensions.
bool rms_norm(Forward& f) {
  if (!f.training()) return false;
  const DType dtype = f.dtype("input");
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

// In training mode the call has the new running statistics as further outputs.
bool batch_norm(Forward& f) {
  const bool batch = f.boolean("training"), running = f.has("running_mean");
  if (!f.training() && !(batch && running)) return false;
  std::vector<Ref> outs;
  if (batch && running) {
    outs = f.e.emit("aten::_native_batch_norm_legit_functional", f.in("input"), f.in("weight"),
                    f.in("bias"), f.in("running_mean"), f.in("running_var"), true,
                    f.real("momentum"), f.real("eps"));
    f.results({outs[0], outs[3], outs[4]});
  } else {
    outs = f.e.emit("aten::native_batch_norm", f.in("input"), f.in("weight"), f.in("bias"),
                    f.in("running_mean"), f.in("running_var"), batch, f.real("momentum"),
                    f.real("eps"));
    f.result(outs[0]);
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

// --- random
// ---------------------------------------------------------------------------------------

// The key of a draw, and the counters that the step provides.
std::string random_key(const CallContext& c, int ordinal) {
  const std::string_view op = c.op();
  const std::string_view base = op.substr(op.find("::") + 2);
  return fmt::format("{}:{}#{}", c.e.origin().module, base.substr(0, base.find('.')), ordinal);
}
const graph::Symbol kSeed{"$seed"}, kStep{"$step"}, kMicro{"$micro"};

// Where a shard lies, for draws; nil for a whole tensor.
Arg place(const Shape& where) {
  return where.empty() ? Arg() : Arg(where);
}

bool dropout(Forward& f) {
  const double p = f.real("p");
  if (!f.boolean("train") || p == 0.0)
    f.result(f.in("input"));
  else
    f.result(f.grad_call("nnscaler::dropout", f.in("input"), p, random_key(f, f.ordinal()), kSeed,
                         kStep, kMicro, place(f.tape().site().offset),
                         place(f.tape().site().full)));
  return true;
}
// Linear in its input: the same mask on the gradient.
void dropout_back(B& b) {
  b.give("input", b("nnscaler::dropout", b.grad(), b.arg("p"), b.arg("key"), b.arg("seed"),
                    b.arg("step"), b.arg("micro"), b.arg("offset"), b.arg("full")));
}

// Noise: no derivative.
bool noise(Forward& f, const char* op) {
  f.result(f.grad_call(op, f.in("self"), f.arg("dtype"), random_key(f, f.ordinal()), kSeed, kStep,
                       kMicro, place(f.tape().site().offset), place(f.tape().site().full)));
  return true;
}
bool bernoulli(Forward& f) {
  if (f.has("p")) return false;  // one number for all elements
  f.result(f.grad_call("nnscaler::bernoulli", f.in("self"), random_key(f, f.ordinal()), kSeed,
                       kStep, kMicro, place(f.tape().site().offset), place(f.tape().site().full)));
  return true;
}

// --- attention
// ------------------------------------------------------------------------------------

double scale_of(const CallContext& c) {
  return c.real("scale", 1.0 / std::sqrt(static_cast<double>(c.shape("query").back())));
}

bool plain(const Shape& q, const Shape& k, const Shape& v) {
  return q.size() == 4 && k.size() == 4 && v.size() == 4 && q[0] == k[0] && q[1] == k[1] &&
         k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] && k[3] == v[3] && q[2] > 0 &&
         k[2] > 0;
}

// Key or value with as many heads as the query has.
Ref with_all_heads(Forward& f, std::string_view name) {
  const Ref x = f.in(name);
  if (!f.boolean("enable_gqa")) return x;
  const Shape q = f.shape("query");
  const int64_t have = f.e.shape(x).at(f.e.shape(x).size() - 3), want = q.at(q.size() - 3);
  if (have == want) return x;
  return f.grad_call("aten::repeat_interleave.self_int", x, want / have, -3);
}
// The shape that with_all_heads gives.
Shape shape_with_all_heads(const Forward& f, std::string_view name) {
  Shape shape = f.shape(name);
  const Shape q = f.shape("query");
  if (f.boolean("enable_gqa") && shape.size() == q.size() && q.size() > 2)
    shape[shape.size() - 3] = q[q.size() - 3];
  return shape;
}

// What the fused kernels take: no dropout, a mask that wants no gradient.
bool fused_serves(const Forward& f, const Tape& tape) {
  const DType d = f.dtype("query");
  if (f.e.device() != "cpu" || !is_floating(d) || f.real("dropout_p") > 0) return false;
  if (!plain(f.shape("query"), shape_with_all_heads(f, "key"), shape_with_all_heads(f, "value")))
    return false;
  if (!f.has("attn_mask")) return true;
  const size_t rank = f.shape("attn_mask").size();
  return (rank == 2 || rank == 4) && !f.boolean("is_causal") &&
         !tape.requires_grad(f.in("attn_mask"));
}

Ref additive_mask(Forward& f) {
  const Ref mask = f.in("attn_mask");
  if (mask.id < 0 || f.e.dtype(mask) != DType::boolean) return mask;
  const Ref zeros = f.e.zeros(f.in("query"), {f.e.shape(mask), f.dtype("query")});
  return f("aten::masked_fill.Scalar", zeros, f("aten::logical_not", mask),
           -std::numeric_limits<double>::infinity());
}

// softmax(q kᵀ · scale + mask) v as operators of their own.
void composed_attention(Forward& f) {
  const Shape q = f.shape("query"), k = f.shape("key");
  const Ref keys = f.grad_call("aten::transpose.int", with_all_heads(f, "key"), -2, -1);
  const Ref queries = f.grad_call("aten::mul.Scalar", f.in("query"), scale_of(f));
  Ref scores = f.grad_call("aten::matmul", queries, keys);
  constexpr double kLow = -std::numeric_limits<double>::infinity();
  if (f.boolean("is_causal")) {
    const Shape square = {q.at(q.size() - 2), k.at(k.size() - 2)};
    const Ref ones = f.e.full(f.in("query"), {square, DType::boolean}, 1.0);
    scores = f.grad_call("aten::masked_fill.Scalar", scores, f("aten::triu", ones, 1), kLow);
  } else if (f.has("attn_mask")) {
    const Ref mask = f.in("attn_mask");
    scores = f.e.dtype(mask) == DType::boolean ? f.grad_call("aten::masked_fill.Scalar", scores,
                                                             f("aten::logical_not", mask), kLow)
                                               : f.grad_call("aten::add.Tensor", scores, mask);
  }
  // A row that a mask hides altogether is zero.
  Ref weights =
      f.grad_call(f.has("attn_mask") ? "aten::_safe_softmax" : "aten::softmax.int", scores, -1);
  const double p = f.real("dropout_p");
  if (p > 0) {
    f.e.note(
        "attention with dropout is composed of softmax and a mask of ours: ATen's fused kernel "
        "takes no dropout on this device");
    Shape offset = f.tape().site().offset, full = f.tape().site().full;  // of the query
    if (!offset.empty()) {
      offset.back() = 0;
      full.back() = f.e.shape(weights).back();
    }
    weights = f.grad_call("nnscaler::dropout", weights, p, random_key(f, f.ordinal()), kSeed, kStep,
                          kMicro, place(offset), place(full));
  }
  f.result(f.grad_call("aten::matmul", weights, with_all_heads(f, "value")));
}

bool attention(Forward& f) {
  if (fused_serves(f, f.tape())) {
    if (!f.has("attn_mask")) {
      const Ref key = with_all_heads(f, "key"), value = with_all_heads(f, "value");
      f.result(f.grad_call("nnscaler::attention", f.in("query"), key, value, f.boolean("is_causal"),
                           f.arg("scale")));
      return true;
    }
    // ATen's kernel takes dense rows for granted.
    const auto dense = [&](const char* name) {
      return f.grad_call("aten::contiguous", with_all_heads(f, name));
    };
    f.result(f.grad_call("aten::_scaled_dot_product_flash_attention_for_cpu", dense("query"),
                         dense("key"), dense("value"), 0.0, false, additive_mask(f),
                         f.arg("scale")));
    return true;
  }
  if (!f.training() && f.real("dropout_p") == 0) return false;
  composed_attention(f);
  return true;
}

void flash_back(B& b) {
  const auto outs =
      b.e.emit("aten::_scaled_dot_product_flash_attention_for_cpu_backward", b.grad(),
               b.in("query"), b.in("key"), b.in("value"), b.out(0), b.out(1), b.real("dropout_p"),
               b.boolean("is_causal"), b.in("attn_mask"), b.arg("scale"));
  b.give("query", outs[0]);
  b.give("key", outs[1]);
  b.give("value", outs[2]);
}

void attention_back(B& b) {
  const auto outs =
      b.e.emit("nnscaler::attention_backward", b.grad(), b.in("query"), b.in("key"), b.in("value"),
               b.out(0), b.out(1), b.boolean("is_causal"), b.arg("scale"));
  b.give("query", outs[0]);
  b.give("key", outs[1]);
  b.give("value", outs[2]);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = {
      gradient("aten::embedding", embedding),
      rewrite("aten::gelu", gelu, gelu_back),
      rewrite("aten::layer_norm", layer_norm, layer_norm_back),
      rewrite("aten::rms_norm", rms_norm, rms_norm_back),
      rewrite("aten::group_norm", group_norm, group_norm_back),
      rewrite("aten::batch_norm", batch_norm, batch_norm_back),
      expands("aten::dropout", dropout),
      gradient("nnscaler::dropout", dropout_back),
      expands("aten::randn_like", [](Forward& f) { return noise(f, "nnscaler::normal_like"); }),
      expands("aten::rand_like", [](Forward& f) { return noise(f, "nnscaler::uniform_like"); }),
      expands("aten::bernoulli", bernoulli),
      constant("nnscaler::normal_like"),
      constant("nnscaler::uniform_like"),
      constant("nnscaler::bernoulli"),
      expands("aten::scaled_dot_product_attention", attention),
      gradient("aten::_scaled_dot_product_flash_attention_for_cpu", flash_back),
      gradient("nnscaler::attention", attention_back),
      gradient("aten::_safe_softmax",
               [](B& b) {
                 b.give("self", b("aten::_softmax_backward_data", b.grad(), b.out(),
                                  b.integer("dim"), b.e.dtype(b.out())));
               }),
  };
  return table;
}

}  // namespace

std::span<const Rule> nn_rules() {
  return rules();
}

}  // namespace nns::lower
