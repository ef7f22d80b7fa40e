// Records of products: linear layers, matrix products, einsum.
#include <algorithm>
#include <map>

#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
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

// --- gradients of linear
// --------------------------------------------------------------------------

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

// --- parts
// ----------------------------------------------------------------------------------------

// Of a product that is a sum over devices, the first takes the bias.
std::optional<std::vector<Ref>> linear_part(Part& p) {
  const Shape ranks = p.placed.addends();
  if (ranks.empty() || !p.has("bias")) return std::nullopt;
  std::vector<NamedArg> local = p.args();
  for (NamedArg& a : local)
    if (a.name == "bias") a.value = p.first_only("bias", ranks);
  return p.apply(p.op(), std::move(local));
}

}  // namespace

void add_products(Records& records) {
  records.add({"aten::linear"},
              {.infer = linear, .annotations = linear_text, .flops = linear_flops});
  records.add({"nnscaler::linear_input", "nnscaler::tiled_linear_input"},
              {.infer = linear_input, .flops = linear_input_flops});
  records.add({"nnscaler::linear_weight", "nnscaler::tiled_linear_weight"},
              {.infer = linear_weight, .flops = linear_weight_flops});
  records.add({"nnscaler::tiled_linear"}, {.infer = linear, .flops = linear_flops});
  records.set({"aten::linear"}, [](Record& r) { r.tiled = "nnscaler::tiled_linear"; });
  records.set({"nnscaler::tiled_linear"}, [](Record& r) { r.untiled = "aten::linear"; });
  records.set({"nnscaler::linear_input"},
              [](Record& r) { r.tiled = "nnscaler::tiled_linear_input"; });
  records.set({"nnscaler::tiled_linear_input"},
              [](Record& r) { r.untiled = "nnscaler::linear_input"; });
  records.set({"nnscaler::linear_weight"},
              [](Record& r) { r.tiled = "nnscaler::tiled_linear_weight"; });
  records.set({"nnscaler::tiled_linear_weight"},
              [](Record& r) { r.untiled = "nnscaler::linear_weight"; });
  records.add({"aten::matmul"},
              {.infer = matmul, .annotations = matmul_text, .flops = matmul_flops});
  records.add({"aten::mm"},
              {.infer = mm, .annotations = Texts{"m k+, k+ n -> m n"}, .flops = matmul_flops});
  records.add(
      {"aten::bmm"},
      {.infer = bmm, .annotations = Texts{"b m k+, b k+ n -> b m n"}, .flops = matmul_flops});
  records.add({"aten::mv"},
              {.infer = mv, .annotations = Texts{"m k+, k+ -> m"}, .flops = matmul_flops});
  records.add({"aten::dot", "aten::vdot"},
              {.infer = dot, .annotations = Texts{"k+, k+ -> 1"}, .flops = matmul_flops});
  records.add({"aten::outer", "aten::ger"}, {.infer = outer, .annotations = Texts{"m, n -> m n"}});
  records.add({"aten::addmm"},
              {.infer = addmm, .annotations = add_product_text, .flops = add_product_flops});
  records.add({"aten::baddbmm"},
              {.infer = baddbmm, .annotations = add_product_text, .flops = add_product_flops});
  records.add({"aten::einsum"},
              {.infer = einsum, .annotations = einsum_text, .flops = einsum_flops});

  records.set({"aten::linear", "nnscaler::tiled_linear", "aten::mm", "aten::addmm", "aten::bmm"},
              [](Record& r) { r.dense = Dense::always; });
  records.set({"aten::matmul"}, [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::linear", "nnscaler::tiled_linear"}, [](Record& r) { r.kind = Kind::linear; });
  records.set({"aten::linear"}, [](Record& r) {
    r.assisted = [](const CallView& call, const annotate::Split& split) {
      return makes_addends(split) && call.has("bias");
    };
    r.part = linear_part;
  });

  records.examples("linear",
                   "{ f(2, 4, 6), f(8, 6) }, { f(4, 6), f(8, 6), f(8) }, { f(4, 6), f(6) }");
  records.examples("matmul",
                   "{ f(4, 6), f(6, 8) }, { f(2, 4, 6), f(6, 8) }, { f(2, 1, 4, 6), f(3, 6, 8) }, "
                   "{ f(6), f(6) }, { f(4, 6), f(6) }, { f(6), f(2, 6, 4) }");
  records.examples("mm", "{ f(4, 6), f(6, 8) }");
  records.examples("bmm", "{ f(2, 4, 6), f(2, 6, 8) }");
  records.examples("mv", "{ f(4, 6), f(6) }");
  records.examples("dot vdot", "{ f(6), f(6) }");
  records.examples("outer ger", "{ f(4), f(6) }");
  records.examples("addmm",
                   "{ f(8), f(4, 6), f(6, 8) }, { f(4, 8), f(4, 6), f(6, 8), { beta = 0.5, alpha = "
                   "2 } }, { f(1, 8), f(4, 6), f(6, 8) }");
  records.examples("baddbmm",
                   "{ f(2, 4, 8), f(2, 4, 6), f(2, 6, 8) }, { f(4, 8), f(2, 4, 6), f(2, 6, 8) }");
  records.examples(
      "einsum",
      "{ 'bik,kj->bij', { f(2, 4, 6), f(6, 8) } }, { 'ij,ij', { f(4, 6), f(4, 6) } }, { "
      "'...ik,...jk->...ij', { f(2, 4, 6), f(2, 8, 6) } }, { 'ij->ji', { f(4, 6) } }");
  records.examples("nnscaler::tiled_linear",
                   "{ f32(2, 4, 6), f32(8, 6) }, { f32(4, 6), f32(8, 6), f32(8) }");
  records.examples("nnscaler::tiled_linear_input", "{ f32(2, 3, 6), f32(6, 4) }");
  records.examples("nnscaler::tiled_linear_weight", "{ f32(2, 3, 6), f32(2, 3, 4) }");
  records.examples("nnscaler::linear_input", "{ f(2, 3, 6), f(6, 4) }, { f(6), f(6, 4) }");
  records.examples("nnscaler::linear_weight", "{ f(2, 3, 6), f(2, 3, 4) }, { f(6), f(4) }");
}

}  // namespace nns::operators
