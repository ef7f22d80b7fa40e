// Records of attention: scaled dot products, fused and composed, and their derivatives.
#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/family.h"
#include "operators/flash.h"
#include "operators/random.h"

namespace nns::operators {
namespace {

double size(const TensorType& t) {
  return static_cast<double>(numel(t.shape));
}

void check_dtypes(const CallView& call, const TensorType& a, const TensorType& b) {
  if (a.dtype != b.dtype) misfit(call, a, b, "one dtype");
}

struct Attention {
  const TensorType *q, *k, *v, *mask;
  bool causal, gqa;
  int64_t heads_per_group = 1;
};
Attention attention_of(const CallView& call) {
  const bool own = call.find("query") == nullptr;
  Attention a{
      &call.tensor(own ? "q" : "query"),          &call.tensor(own ? "k" : "key"),
      &call.tensor(own ? "v" : "value"),          call.maybe_tensor(own ? "mask" : "attn_mask"),
      call.boolean(own ? "causal" : "is_causal"), call.boolean("enable_gqa")};
  const Shape &q = a.q->shape, &k = a.k->shape, &v = a.v->shape;
  check_dtypes(call, *a.q, *a.k);
  check_dtypes(call, *a.q, *a.v);
  if (q.size() < 2 || k.size() != q.size() || v.size() != q.size() || q.back() != k.back())
    misfit(call, *a.q, *a.k, "[…, queries, width] and […, keys, width]");
  if (k[k.size() - 2] != v[v.size() - 2])
    misfit(call, *a.k, *a.v, "[…, keys, width] and […, keys, value width]");
  const size_t heads = q.size() - 3;
  for (size_t i = 0; i + 2 < q.size(); ++i) {
    const bool grouped = a.gqa && i == heads && k[i] > 0 && q[i] % k[i] == 0;
    if (k[i] != v[i] || (q[i] != k[i] && !grouped && q[i] != 1 && k[i] != 1))
      misfit(call, *a.q, *a.k, "equal leading sizes");
    if (grouped) a.heads_per_group = q[i] / k[i];
  }
  if (a.mask != nullptr) {
    Shape scores(q.begin(), q.end() - 1);
    scores.push_back(k[k.size() - 2]);
    const auto shape = broadcast(scores, a.mask->shape);
    if (!shape || *shape != scores)
      misfit(call, *a.q, *a.mask, "a mask that broadcasts to " + to_string(scores));
  }
  return a;
}
Shape attention_shape(const Attention& a) {
  Shape out = a.q->shape;
  for (size_t i = 0; i + 2 < out.size(); ++i)
    if (out[i] == 1) out[i] = a.k->shape[i];
  out.back() = a.v->shape.back();
  return out;
}
Types attention(const CallView& call) {
  const Attention a = attention_of(call);
  return {{attention_shape(a), a.q->dtype}};
}
Types flash_attention(const CallView& call) {
  const Attention a = attention_of(call);
  const Shape out = attention_shape(a);
  const DType dtype = a.q->dtype == DType::f64 ? DType::f64 : DType::f32;
  return {{out, a.q->dtype}, {Shape(out.begin(), out.end() - 1), dtype}};
}
Types attention_backward(const CallView& call) {
  const Attention a = attention_of(call);
  Types out = {*a.q, *a.k, *a.v};
  if (const auto wanted = call.bools("wanted"); !wanted.empty()) {
    out.push_back(a.mask != nullptr ? *a.mask : undefined_output(a.q->dtype));
    for (size_t i = 0; i < out.size(); ++i)
      if (!wanted.at(i)) out[i] = undefined_output(out[i].dtype);
  }
  return out;
}
// Batch and heads spatial, queries too when each sees all keys alike; keys and the inner width
// frozen. Grouped heads are a product of groups and heads in a group.
struct AttentionDims {
  DimTexts q, k, v, mask, out, rows;
};
AttentionDims attention_dims(const CallView& call) {
  const Attention a = attention_of(call);
  const Shape out = attention_shape(a);
  const size_t lead = out.size() - 2;
  const std::string queries = a.causal || a.mask != nullptr ? "l^" : "l";
  AttentionDims d;
  const auto name = [&](const Shape& shape, size_t i, bool grouped) -> std::string {
    if (shape[i] == 1 && out[i] != 1) return "1";
    const std::string axis_name = fmt::format("b{}", i);
    // One head of keys for all queries needs no groups.
    const bool heads = i + 1 == lead && a.heads_per_group > 1 && a.k->shape[i] > 1;
    return heads && grouped ? fmt::format("({} g^)", axis_name) : axis_name;
  };
  for (size_t i = 0; i < lead; ++i) {
    d.q.push_back(name(a.q->shape, i, true));
    d.k.push_back(name(a.k->shape, i, false));
    d.out.push_back(name(out, i, true));
  }
  d.v = d.k;
  d.rows = d.out;
  d.rows.push_back(queries);
  d.q.insert(d.q.end(), {queries, "e^"});
  d.k.insert(d.k.end(), {"s^", "e^"});
  d.v.insert(d.v.end(), {"s^", "v"});
  d.out.insert(d.out.end(), {queries, "v"});
  if (a.mask != nullptr) {
    const Shape& m = a.mask->shape;
    const size_t shift = out.size() - m.size();
    for (size_t i = 0; i < m.size(); ++i) {
      const size_t at = i + shift;
      if (m[i] == 1)
        d.mask.push_back("1");
      else
        d.mask.push_back(at < lead ? name(out, at, true) : at == lead ? "l^" : "s^");
    }
  }
  return d;
}
std::vector<DimTexts> with_mask(const CallView& call, std::vector<DimTexts> in,
                                const DimTexts& mask) {
  if (call.has("attn_mask") || call.has("mask")) in.push_back(mask);
  return in;
}
Texts attention_text(const CallView& call) {
  const AttentionDims d = attention_dims(call);
  return {annotation(with_mask(call, {d.q, d.k, d.v}, d.mask), {d.out})};
}
// Causal attention of a text to itself may have the text cut: its parts take turns (ring_part).
Texts spelled_text(const CallView& call) {
  AttentionDims d = attention_dims(call);
  const Attention a = attention_of(call);
  const size_t at = a.q->shape.size() - 2;
  if (a.causal && a.mask == nullptr && a.q->shape[at] == a.k->shape[at] &&
      call.real("dropout_p") == 0)
    for (DimTexts* dims : {&d.q, &d.k, &d.v, &d.out}) (*dims)[at] = "l";
  return {annotation(with_mask(call, {d.q, d.k, d.v}, d.mask), {d.out})};
}
// The flash kernels want one width for keys and values, so it stays whole.
void freeze_width(AttentionDims& d) {
  d.v.back() = d.out.back() = "v^";
}
Texts flash_text(const CallView& call) {
  AttentionDims d = attention_dims(call);
  freeze_width(d);
  return {annotation(with_mask(call, {d.q, d.k, d.v}, d.mask), {d.out, d.rows})};
}
Texts flash_backward_text(const CallView& call) {
  AttentionDims d = attention_dims(call);
  freeze_width(d);
  for (DimTexts* dims : {&d.q, &d.out, &d.rows})
    for (auto& dim : *dims)
      if (dim == "l") dim = "l^";  // gradients of keys sum over the queries
  return {
      annotation(with_mask(call, {d.out, d.q, d.k, d.v, d.out, d.rows}, d.mask), {d.q, d.k, d.v})};
}
double attention_flops(const CallView& call) {
  const Attention a = attention_of(call);
  const auto keys = static_cast<double>(a.k->shape[a.k->shape.size() - 2]);
  const double rows = size(*a.q) / std::max<double>(1, static_cast<double>(a.q->shape.back()));
  return 2 * rows * keys * static_cast<double>(a.q->shape.back() + a.v->shape.back());
}
double attention_backward_flops(const CallView& call) {
  return 2.5 * attention_flops(call);
}

// Kernels leave out the tiles above the diagonal, of a text attending to itself almost half of all.
double below_diagonal(const CallView& call) {
  const Attention a = attention_of(call);
  const auto queries = static_cast<double>(a.q->shape[a.q->shape.size() - 2]);
  const auto keys = static_cast<double>(a.k->shape[a.k->shape.size() - 2]);
  return a.causal && queries == keys && keys > 0 ? (keys + 1) / (2 * keys) : 1;
}

// --- derivatives
// -----------------------------------------------------------------------------------

double scale_of(const RuleCall& c) {
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

bool has_plain_shapes(const Forward& f) {
  return plain(f.shape("query"), shape_with_all_heads(f, "key"), shape_with_all_heads(f, "value"));
}

// What the fused kernels of a CPU take: a mask that wants no gradient. Of dropout they know
// nothing.
bool fused_takes(const Forward& f) {
  if (f.e.device() != "cpu" || !is_floating(f.type("query").dtype) || !has_plain_shapes(f))
    return false;
  if (!f.has("attn_mask")) return true;
  const size_t rank = f.shape("attn_mask").size();
  return (rank == 2 || rank == 4) && !f.boolean("is_causal") &&
         !f.recording().requires_grad(f.in("attn_mask"));
}

bool fused_serves(const Forward& f) {
  return f.real("dropout_p") == 0 && fused_takes(f);
}

Ref additive_mask(Forward& f) {
  const Ref mask = f.in("attn_mask");
  if (mask.id < 0 || f.e.dtype(mask) != DType::boolean) return mask;
  const Ref zeros = f.e.zeros(f.in("query"), {f.e.shape(mask), f.type("query").dtype});
  return f("aten::masked_fill.Scalar", zeros, f("aten::logical_not", mask),
           -std::numeric_limits<double>::infinity());
}

// Where the weights of a call lie in the unsplit ones, for draws: offset and full, or nothing.
std::pair<Arg, Arg> place_of_weights(const Forward& f, int64_t keys) {
  Shape offset = f.recording().offset(), full = f.recording().full();  // of the query
  if (!offset.empty()) {
    offset.back() = 0;
    full.back() = keys;
  }
  return {place(offset), place(full)};
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
        "attention with dropout is composed of softmax and a mask of ours: no fused kernel takes "
        "this call");
    const auto [offset, full] = place_of_weights(f, f.e.shape(weights).back());
    weights = f.grad_call("nnscaler::dropout", weights, p, random_key(f, f.ordinal()), kSeed, kStep,
                          kMicro, offset, full);
  }
  f.result(f.grad_call("aten::matmul", weights, with_all_heads(f, "value")));
}

bool flash_of_gpu_serves(const Forward& f) {
  if (!flash_takes(f.e.device(), f.type("query").dtype) || !has_plain_shapes(f)) return false;
  const Shape q = f.shape("query");
  return f.real("dropout_p") == 0 &&
         flash_serves(q[2], f.shape("key")[2], q[3], f.boolean("is_causal"));
}

bool own_serves(const Forward& f) {
  return !f.has("attn_mask") && (fused_serves(f) || flash_of_gpu_serves(f));
}
void write_own(Forward& f) {
  const Ref key = with_all_heads(f, "key"), value = with_all_heads(f, "value");
  f.result(f.grad_call("nnscaler::attention", f.in("query"), key, value, f.boolean("is_causal"),
                       f.arg("scale")));
}
// Our kernel draws what dropout keeps as it goes; all or nothing needs no draws.
bool dropped_serves(const Forward& f) {
  const double p = f.real("dropout_p");
  const DType dtype = f.type("query").dtype;
  return p > 0 && p < 1 && (dtype == DType::f32 || dtype == DType::bf16) && !f.has("attn_mask") &&
         fused_takes(f);
}
void write_dropped(Forward& f) {
  const Ref key = with_all_heads(f, "key"), value = with_all_heads(f, "value");
  const auto [offset, full] = place_of_weights(f, f.shape("key").at(2));
  f.result(f.grad_call("nnscaler::dropped_attention", f.in("query"), key, value,
                       f.real("dropout_p"), f.boolean("is_causal"), f.arg("scale"),
                       random_key(f, f.ordinal()), kSeed, kStep, kMicro, offset, full));
}
void write_flash(Forward& f) {
  // ATen's kernel takes dense rows for granted.
  const auto dense = [&](const char* name) {
    return f.grad_call("aten::contiguous", with_all_heads(f, name));
  };
  // One after another: the order of calls does not depend on the compiler.
  const Ref mask = additive_mask(f);
  const Ref value = dense("value"), key = dense("key"), query = dense("query");
  f.result(f.grad_call("aten::_scaled_dot_product_flash_attention_for_cpu", query, key, value, 0.0,
                       false, mask, f.arg("scale")));
}
bool compose(Forward& f) {
  if (!f.training() && f.real("dropout_p") == 0) return false;
  composed_attention(f);
  return true;
}

void flash_back(Backward& b) {
  const auto outs =
      b.e.emit("aten::_scaled_dot_product_flash_attention_for_cpu_backward", b.grad(),
               b.in("query"), b.in("key"), b.in("value"), b.out(0), b.out(1), b.real("dropout_p"),
               b.boolean("is_causal"), b.in("attn_mask"), b.arg("scale"));
  b.give("query", outs[0]);
  b.give("key", outs[1]);
  b.give("value", outs[2]);
}

void own_back(Backward& b) {
  const auto outs =
      b.e.emit("nnscaler::attention_backward", b.grad(), b.in("query"), b.in("key"), b.in("value"),
               b.out(0), b.out(1), b.boolean("is_causal"), b.arg("scale"));
  b.give("query", outs[0]);
  b.give("key", outs[1]);
  b.give("value", outs[2]);
}

void dropped_back(Backward& b) {
  const auto outs =
      b.e.emit("nnscaler::dropped_attention_backward", b.grad(), b.in("q"), b.in("k"), b.in("v"),
               b.out(0), b.out(1), b.arg("p"), b.boolean("causal"), b.arg("scale"), b.arg("key"),
               b.arg("seed"), b.arg("step"), b.arg("micro"), b.arg("offset"), b.arg("full"));
  b.give("q", outs[0]);
  b.give("k", outs[1]);
  b.give("v", outs[2]);
}

}  // namespace

void add_attention(Records& records) {
  records.add({"aten::scaled_dot_product_attention"}, {.infer = attention,
                                                       .annotations = spelled_text,
                                                       .flops = attention_flops,
                                                       .random = true,
                                                       .counted = true,
                                                       .kind = Kind::attention,
                                                       .assisted = cuts_text,
                                                       .part = ring_part});
  records.add({"aten::_scaled_dot_product_flash_attention_for_cpu", "nnscaler::attention"},
              {.infer = flash_attention,
               .annotations = flash_text,
               .flops = attention_flops,
               .executed = below_diagonal});
  records.add({"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
               "nnscaler::attention_backward"},
              {.infer = attention_backward,
               .annotations = flash_backward_text,
               .flops = attention_backward_flops,
               .executed = below_diagonal});
  records.add({"nnscaler::dropped_attention"}, {.infer = flash_attention,
                                                .annotations = flash_text,
                                                .flops = attention_flops,
                                                .executed = below_diagonal,
                                                .random = true,
                                                .counted = true,
                                                .sliced = true});
  records.add({"nnscaler::dropped_attention_backward"}, {.infer = attention_backward,
                                                         .flops = attention_backward_flops,
                                                         .executed = below_diagonal,
                                                         .random = true,
                                                         .counted = true,
                                                         .sliced = true});
  records.add({"nnscaler::attention_dropout"}, {.infer = attention,
                                                .annotations = attention_text,
                                                .flops = attention_flops,
                                                .random = true,
                                                .counted = true,
                                                .sliced = true});
  records.add({"nnscaler::attention_dropout_backward"}, {.infer = attention_backward,
                                                         .flops = attention_backward_flops,
                                                         .random = true,
                                                         .counted = true,
                                                         .sliced = true});

  records.derive("aten::scaled_dot_product_attention", expands(compose));
  records.set({"aten::scaled_dot_product_attention"}, [](Record& r) {
    r.kernels = {{"nnscaler::attention", own_serves, write_own},
                 {"nnscaler::dropped_attention", dropped_serves, write_dropped},
                 {"aten::_scaled_dot_product_flash_attention_for_cpu", fused_serves, write_flash}};
  });
  records.derive("aten::_scaled_dot_product_flash_attention_for_cpu", gradient(flash_back));
  records.derive("nnscaler::attention", gradient(own_back));
  records.derive("nnscaler::dropped_attention", gradient(dropped_back));

  records.examples(
      "scaled_dot_product_attention",
      "{ f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6) }, { f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, "
      "10, 6), b(6, 10):logical_or(b(6, 10):mul(0):eq(0)) }, { f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, "
      "4, 6, 8), { is_causal = true } }, { f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6), f(2, 1, "
      "6, 10) }, { f(2, 4, 6, 8), f(2, 2, 10, 8), f(2, 2, 10, 8), { enable_gqa = true } }");
  records.examples("_scaled_dot_product_flash_attention_for_cpu",
                   "{ f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8) }, { f(2, 4, 6, 8), f(2, 4, "
                   "10, 8), f(2, 4, 10, 8), 0, false, { attn_mask = f(2, 1, 6, 10) } }, { f(2, 4, "
                   "6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), 0, true }");
  records.examples("_scaled_dot_product_flash_attention_for_cpu_backward",
                   "local q, k, v = f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8) local out, lse = "
                   "aten._scaled_dot_product_flash_attention_for_cpu(q, k, v) return { f(2, 4, 6, "
                   "8), q, k, v, out, lse, 0, false }");
  records.examples("nnscaler::attention",
                   "{ f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8) }, { f(2, 4, 6, 8), f(2, 4, 6, "
                   "8), f(2, 4, 6, 8), true }");
  records.examples("nnscaler::attention_backward",
                   "local q, k, v = f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8) local out, lse = "
                   "aten._scaled_dot_product_flash_attention_for_cpu(q, k, v) return { f(2, 4, 6, "
                   "8), q, k, v, out, lse }");
  records.examples("nnscaler::dropped_attention",
                   "{ n = 10, f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8), 0.5, false, nil, "
                   "'a#0', 7, 3, 1 }, { n = 10, f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), 0.3, "
                   "true, nil, 'a#0', 7, 3, 1 }");
  records.examples("nnscaler::dropped_attention_backward",
                   "local q, k, v = f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 8) local out, lse = "
                   "nnscaler.dropped_attention(q, k, v, 0.5, false, nil, 'a#0', 7, 3, 1) return { "
                   "n = 13, f(2, 4, 6, 8), q, k, v, out, lse, 0.5, false, nil, 'a#0', 7, 3, 1 }");
  records.examples("nnscaler::attention_dropout",
                   "{ n = 11, f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6), nil, 0.5, false, nil, "
                   "'a#0', 7, 3, 1 }, { n = 11, f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6), "
                   "f(2, 1, 6, 10), 0.5, false, nil, 'a#0', 7, 3, 1 }");
  records.examples("nnscaler::attention_dropout_backward",
                   "{ n = 13, f(2, 4, 6, 6), f(2, 4, 6, 8), f(2, 4, 10, 8), f(2, 4, 10, 6), nil, "
                   "0.5, false, nil, 'a#0', 7, 3, 1, { true, true, true, false } }");
}

}  // namespace nns::operators
