// Rows of products: linear layers, matrix products, einsum and attention.
#include <algorithm>
#include <map>

#include "annotate/rows.h"

namespace nns::annotate {
namespace {

double size(const TensorType& t) {
  return static_cast<double>(numel(t.shape));
}

void check_dtypes(const CallView& call, const TensorType& a, const TensorType& b) {
  if (a.dtype != b.dtype) misfit(call, a, b, "one dtype");
}

// --- linear --------------------------------------------------------------------------------------

Types linear(const CallView& call) {
  const TensorType &input = call.tensor("input"), &weight = call.tensor("weight");
  check_dtypes(call, input, weight);
  const bool row = weight.shape.size() == 1;
  if (input.shape.empty() || weight.shape.empty() || weight.shape.size() > 2 ||
      input.shape.back() != weight.shape.back())
    misfit(call, input, weight, "[…, in] and [out, in]");
  Shape out(input.shape.begin(), input.shape.end() - 1);
  if (!row) out.push_back(weight.shape[0]);
  if (const TensorType* bias = call.maybe_tensor("bias"))
    if (const auto shape = broadcast(out, bias->shape); !shape || *shape != out)
      misfit(call, weight, *bias, fmt::format("a bias of shape [{}]", weight.shape[0]));
  return {{out, input.dtype}};
}
Texts linear_text(const CallView& call) {
  if (call.tensor("weight").shape.size() == 1)
    return {call.has("bias") ? "* k^, k^, 1 -> *" : "* k^, k^ -> *"};
  // Only one of the addends takes the bias, so its gradient is whole on each.
  if (call.has("bias")) return {"* k+, n k+, n : /k -> * n"};
  return {"* k+, n k+ -> * n"};
}
double linear_flops(const CallView& call) {
  const Shape& weight = call.tensor("weight").shape;
  const double rows =
      size(call.tensor("input")) / std::max<double>(1, static_cast<double>(weight.back()));
  return 2 * rows * size(call.tensor("weight"));
}

// --- matrix products -----------------------------------------------------------------------------

struct Matrices {
  Shape batch_a, batch_b;  // leading axes
  bool vector_a = false, vector_b = false;
  int64_t m = 1, k = 1, n = 1;
};
Matrices matrices(const CallView& call, const TensorType& a, const TensorType& b) {
  check_dtypes(call, a, b);
  Matrices x;
  const size_t ra = a.shape.size(), rb = b.shape.size();
  if (ra == 0 || rb == 0) misfit(call, a, b, "tensors with one axis at least");
  x.vector_a = ra == 1;
  x.vector_b = rb == 1;
  x.k = a.shape.back();
  if (x.k != (x.vector_b ? b.shape[0] : b.shape[rb - 2]))
    misfit(call, a, b, "an inner size that is equal ([…, m, k] and […, k, n])");
  if (!x.vector_a) x.m = a.shape[ra - 2];
  if (!x.vector_b) x.n = b.shape[rb - 1];
  if (ra > 2) x.batch_a.assign(a.shape.begin(), a.shape.end() - 2);
  if (rb > 2) x.batch_b.assign(b.shape.begin(), b.shape.end() - 2);
  return x;
}
Types matmul(const CallView& call) {
  const TensorType &a = call.tensor("self"), &b = call.tensor("other");
  const Matrices x = matrices(call, a, b);
  auto out = broadcast(x.batch_a, x.batch_b);
  if (!out) misfit(call, a, b, "leading sizes that broadcast");
  if (!x.vector_a) out->push_back(x.m);
  if (!x.vector_b) out->push_back(x.n);
  return {{*out, a.dtype}};
}
// Leading axes aligned from the last; a size of 1 that broadcasts stands for itself.
DimTexts batch_dims(const Shape& own, const Shape& all) {
  DimTexts dims;
  for (size_t i = 0; i < own.size(); ++i) {
    const size_t at = i + all.size() - own.size();
    dims.push_back(own[i] == 1 && all[at] != 1 ? "1" : letter(at));
  }
  return dims;
}
Texts matmul_text(const CallView& call) {
  const Matrices x = matrices(call, call.tensor("self"), call.tensor("other"));
  const Shape batch = broadcast(x.batch_a, x.batch_b).value();
  DimTexts a = batch_dims(x.batch_a, batch), b = batch_dims(x.batch_b, batch);
  DimTexts out = letters(batch.size());
  const std::string m = letter(batch.size()), n = letter(batch.size() + 1),
                    k = letter(batch.size() + 2) + "+";
  if (!x.vector_a) a.push_back(m);
  a.push_back(k);
  b.push_back(k);
  if (!x.vector_b) b.push_back(n);
  if (!x.vector_a) out.push_back(m);
  if (!x.vector_b) out.push_back(n);
  return {annotation({a, b}, {out})};
}
double matmul_flops(const CallView& call) {
  const auto operands = call.operands();
  const auto k = static_cast<double>(operands[0]->shape.empty() ? 1 : operands[0]->shape.back());
  return 2 * k * size(infer(call)[0]);
}

// mm, bmm, mv and dot differ from matmul in what they accept.
Types plain_product(const CallView& call, size_t rank_a, size_t rank_b) {
  const auto operands = call.operands();
  if (operands.size() != 2) call.fail("expected two tensors");
  const TensorType &a = *operands[0], &b = *operands[1];
  if (a.shape.size() != rank_a || b.shape.size() != rank_b)
    misfit(call, a, b, fmt::format("{} and {} axes", rank_a, rank_b));
  const Matrices x = matrices(call, a, b);
  if (x.batch_a != x.batch_b) misfit(call, a, b, "equal batches");
  Shape out = x.batch_a;
  if (!x.vector_a) out.push_back(x.m);
  if (!x.vector_b) out.push_back(x.n);
  return {{out, call.dtype("out_dtype").value_or(a.dtype)}};
}
Types mm(const CallView& call) {
  return plain_product(call, 2, 2);
}
Types bmm(const CallView& call) {
  return plain_product(call, 3, 3);
}
Types mv(const CallView& call) {
  return plain_product(call, 2, 1);
}
Types dot(const CallView& call) {
  return plain_product(call, 1, 1);
}
Types outer(const CallView& call) {
  const auto operands = call.operands();
  if (operands.size() != 2 || operands[0]->shape.size() != 1 || operands[1]->shape.size() != 1)
    misfit(call, *operands.at(0), *operands.at(1), "two vectors");
  return {{{operands[0]->shape[0], operands[1]->shape[0]},
           result_type({{operands[0], {}}, {operands[1], {}}})}};
}

// self + mat1 @ mat2: the inner size is frozen, since self would be added once per part.
Types add_product(const CallView& call, std::string_view a_name, std::string_view b_name,
                  size_t rank) {
  const TensorType &a = call.tensor(a_name), &b = call.tensor(b_name), &self = call.tensor("self");
  if (a.shape.size() != rank || b.shape.size() != rank)
    misfit(call, a, b, fmt::format("{} axes each", rank));
  const Matrices x = matrices(call, a, b);
  if (x.batch_a != x.batch_b) misfit(call, a, b, "equal batches");
  Shape out = x.batch_a;
  out.insert(out.end(), {x.m, x.n});
  check_dtypes(call, self, a);
  if (const auto shape = broadcast(out, self.shape); !shape || *shape != out)
    misfit(call, self, {out, a.dtype}, "a first tensor that broadcasts to the product");
  return {{out, a.dtype}};
}
Types addmm(const CallView& call) {
  return add_product(call, "mat1", "mat2", 2);
}
Types baddbmm(const CallView& call) {
  return add_product(call, "batch1", "batch2", 3);
}
Texts add_product_text(const CallView& call) {
  const Shape out = infer(call)[0].shape;
  const DimTexts dims = letters(out.size());
  DimTexts a = dims, b = dims;
  a.back() = "k^";
  b[out.size() - 2] = "k^";
  return {annotation({batch_dims(call.tensor("self").shape, out), a, b}, {dims})};
}
double add_product_flops(const CallView& call) {
  return 2 * size(infer(call)[0]) * static_cast<double>(call.operands().at(1)->shape.back());
}

// --- einsum --------------------------------------------------------------------------------------

struct Einsum {
  std::vector<std::vector<std::string>> inputs;  // axis names
  std::vector<std::string> output;
  std::map<std::string, int64_t> sizes;
};
Einsum einsum_of(const CallView& call) {
  Einsum e;
  std::string text = call.text("equation");
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  const auto tensors = call.tensors("tensors");
  size_t at = 0, widest = 0;
  const auto parse = [&](std::string_view term, size_t ellipsis) {
    std::vector<std::string> names;
    for (size_t i = 0; i < term.size(); ++i) {
      if (term.substr(i, 3) == "...") {
        for (size_t k = 0; k < ellipsis; ++k) names.push_back(fmt::format("dots{}", ellipsis - k));
        i += 2;
      } else if (std::isalpha(static_cast<unsigned char>(term[i]))) {
        names.emplace_back(1, term[i]);
      } else {
        call.fail(fmt::format("equation '{}': '{}' is not a letter", text, term[i]));
      }
    }
    return names;
  };
  const std::string left = text.substr(0, arrow);
  for (const TensorType* t : tensors) {
    const size_t comma = std::min(left.find(',', at), left.size());
    const std::string term = left.substr(at, comma - at);
    at = comma + 1;
    const size_t dots = term.find("...") == std::string::npos ? 0 : 3;
    const size_t rank = t->shape.size(), plain = term.size() - dots;
    if (plain > rank || (dots == 0 && plain != rank))
      call.fail(fmt::format("equation '{}': '{}' for {}", text, term, to_string(*t)));
    if (dots != 0) widest = std::max(widest, rank - plain);
    e.inputs.push_back(parse(term, rank - plain));
    for (size_t i = 0; i < rank; ++i) {
      auto [entry, added] = e.sizes.emplace(e.inputs.back()[i], t->shape[i]);
      if (!added && entry->second == 1) entry->second = t->shape[i];
      if (entry->second != t->shape[i] && t->shape[i] != 1)
        call.fail(fmt::format("equation '{}': '{}' is {} and {}", text, entry->first, entry->second,
                              t->shape[i]));
    }
  }
  if (at != left.size() + 1)
    call.fail(fmt::format("equation '{}' for {} tensors", text, tensors.size()));
  if (arrow != std::string::npos) {
    e.output = parse(text.substr(arrow + 2), widest);
  } else {  // letters that occur once, in alphabetical order
    std::map<std::string, int> uses;
    for (const auto& names : e.inputs)
      for (const auto& name : names) ++uses[name];
    for (size_t k = 0; k < widest; ++k) e.output.push_back(fmt::format("dots{}", widest - k));
    for (const auto& [name, count] : uses)
      if (count == 1 && name.size() == 1) e.output.push_back(name);
  }
  for (const auto& name : e.output)
    if (!e.sizes.contains(name))
      call.fail(fmt::format("equation '{}': '{}' has no input", text, name));
  return e;
}
Types einsum(const CallView& call) {
  const Einsum e = einsum_of(call);
  TensorType out{{}, call.tensors("tensors").at(0)->dtype};
  for (const auto& name : e.output) out.shape.push_back(e.sizes.at(name));
  return {out};
}
Texts einsum_text(const CallView& call) {
  const Einsum e = einsum_of(call);
  const auto operands = call.operands();
  const auto name_dims = [&](const std::vector<std::string>& names, const TensorType* t) {
    DimTexts dims;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool kept = std::find(e.output.begin(), e.output.end(), names[i]) != e.output.end();
      const bool stretched = t != nullptr && t->shape[i] == 1 && e.sizes.at(names[i]) != 1;
      dims.push_back(stretched ? "1" : kept ? names[i] : names[i] + "+");
    }
    return dims;
  };
  std::vector<DimTexts> in;
  for (size_t i = 0; i < e.inputs.size(); ++i) {
    auto sorted = e.inputs[i];
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return {};  // a diagonal
    in.push_back(name_dims(e.inputs[i], operands[i]));
  }
  return {annotation(in, {name_dims(e.output, nullptr)})};
}
double einsum_flops(const CallView& call) {
  double product = 2;
  for (const auto& [name, n] : einsum_of(call).sizes) product *= static_cast<double>(n);
  return product;
}

// --- attention -----------------------------------------------------------------------------------

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

}  // namespace

// Gradients of linear.
Types linear_input(const CallView& call) {
  const TensorType &grad = call.tensor("grad_output"), &weight = call.tensor("weight");
  if (grad.shape.empty() || weight.shape.size() != 2 || grad.shape.back() != weight.shape[0])
    misfit(call, grad, weight, "[…, outputs] and [outputs, inputs]");
  Shape shape = grad.shape;
  shape.back() = weight.shape[1];
  return {{shape, grad.dtype}};
}
Types linear_weight(const CallView& call) {
  const TensorType &grad = call.tensor("grad_output"), &input = call.tensor("input");
  if (grad.shape.empty() || grad.shape.size() != input.shape.size() ||
      !std::equal(grad.shape.begin(), grad.shape.end() - 1, input.shape.begin()))
    misfit(call, grad, input, "[…, outputs] and […, inputs]");
  return {{{grad.shape.back(), input.shape.back()}, grad.dtype}};
}
double linear_input_flops(const CallView& call) {
  return 2.0 * static_cast<double>(numel(call.tensor("grad_output").shape)) *
         static_cast<double>(call.tensor("weight").shape[1]);
}
double linear_weight_flops(const CallView& call) {
  return 2.0 * static_cast<double>(numel(call.tensor("grad_output").shape)) *
         static_cast<double>(call.tensor("input").shape.back());
}

std::vector<OpInfo> product_rows() {
  Rows rows;
  rows.add({"aten::linear"}, {.infer = linear, .annotations = linear_text, .flops = linear_flops});
  rows.add({"nnscaler::linear_input"}, {.infer = linear_input, .flops = linear_input_flops});
  rows.add({"nnscaler::linear_weight"}, {.infer = linear_weight, .flops = linear_weight_flops});
  rows.add({"aten::matmul"}, {.infer = matmul, .annotations = matmul_text, .flops = matmul_flops});
  rows.add({"aten::mm"},
           {.infer = mm, .annotations = Texts{"m k+, k+ n -> m n"}, .flops = matmul_flops});
  rows.add({"aten::bmm"},
           {.infer = bmm, .annotations = Texts{"b m k+, b k+ n -> b m n"}, .flops = matmul_flops});
  rows.add({"aten::mv"},
           {.infer = mv, .annotations = Texts{"m k+, k+ -> m"}, .flops = matmul_flops});
  rows.add({"aten::dot", "aten::vdot"},
           {.infer = dot, .annotations = Texts{"k+, k+ -> 1"}, .flops = matmul_flops});
  rows.add({"aten::outer", "aten::ger"}, {.infer = outer, .annotations = Texts{"m, n -> m n"}});
  rows.add({"aten::addmm"},
           {.infer = addmm, .annotations = add_product_text, .flops = add_product_flops});
  rows.add({"aten::baddbmm"},
           {.infer = baddbmm, .annotations = add_product_text, .flops = add_product_flops});
  rows.add({"aten::einsum"}, {.infer = einsum, .annotations = einsum_text, .flops = einsum_flops});

  rows.add({"aten::scaled_dot_product_attention"}, {.infer = attention,
                                                    .annotations = attention_text,
                                                    .flops = attention_flops,
                                                    .random = true});
  rows.add({"aten::_scaled_dot_product_flash_attention_for_cpu", "nnscaler::attention"},
           {.infer = flash_attention, .annotations = flash_text, .flops = attention_flops});
  rows.add({"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            "nnscaler::attention_backward"},
           {.infer = attention_backward,
            .annotations = flash_backward_text,
            .flops = attention_backward_flops});
  rows.add({"nnscaler::attention_dropout"}, {.infer = attention,
                                             .annotations = attention_text,
                                             .flops = attention_flops,
                                             .random = true,
                                             .sliced = true});
  rows.add({"nnscaler::attention_dropout_backward"}, {.infer = attention_backward,
                                                      .flops = attention_backward_flops,
                                                      .random = true,
                                                      .sliced = true});
  return rows.take();
}

}  // namespace nns::annotate
