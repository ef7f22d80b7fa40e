// Records of operators that read or write by index, and of embeddings.
#include <algorithm>

#include "operators/family.h"
#include "operators/split.h"

namespace nns::operators {
namespace {

size_t rank_of(const CallView& call) {
  return first(call).shape.size();
}
size_t dim_of(const CallView& call) {
  return axis(call, call.integer("dim"), rank_of(call));
}
std::string number(int64_t x) {
  return std::to_string(x);
}

const TensorType& index_tensor(const CallView& call, std::string_view name = "index") {
  const TensorType& index = call.tensor(name);
  if (index.dtype != DType::i64 && index.dtype != DType::i32)
    call.fail(fmt::format("'{}' is {}; expected int64 or int32", name, to_string(index)));
  return index;
}

// --- along one axis ------------------------------------------------------------------------------

Types index_select(const CallView& call) {
  TensorType out = first(call);
  const TensorType& index = index_tensor(call);
  if (index.shape.size() > 1) call.fail("index is " + to_string(index) + "; expected one axis");
  if (!out.shape.empty()) out.shape[dim_of(call)] = numel(index.shape);
  return {out};
}
// The index may be split like any axis of the result; the axis it reads stays whole.
Texts index_select_text(const CallView& call) {
  if (rank_of(call) == 0 || call.tensor("index").shape.empty()) return {};
  const size_t i = dim_of(call);
  DimTexts self = letters(rank_of(call)), out = self;
  self[i] = number(first(call).shape[i]);
  return {annotation({self, {out[i]}}, {out})};
}

void check_gather(const CallView& call, const TensorType& self, const TensorType& index) {
  const size_t i = axis(call, call.integer("dim"), self.shape.size());
  if (index.shape.size() != self.shape.size() && !(index.shape.empty() || self.shape.empty()))
    misfit(call, self, index, "tensors with as many axes");
  for (size_t k = 0; k < index.shape.size() && k < self.shape.size(); ++k)
    if (k != i && index.shape[k] > self.shape[k])
      misfit(call, self, index, fmt::format("an index within the tensor but for axis {}", i));
}
Types gather(const CallView& call) {
  const TensorType& index = index_tensor(call);
  if (numel(index.shape) != 0) check_gather(call, first(call), index);
  return {{index.shape, first(call).dtype}};
}
// Axes where tensor and index agree are split together; the index axis of `self` stays whole. What
// a scatter writes cannot be split along it, what a gather reads can.
std::vector<DimTexts> indexed_axes(const CallView& call, bool index_free) {
  const Shape &self = first(call).shape, &index = call.tensor("index").shape;
  const size_t i = dim_of(call);
  DimTexts a = letters(self.size()), b = letters(index.size());
  for (size_t k = 0; k < self.size(); ++k) {
    if (k == i || self[k] != index[k]) a[k] = number(self[k]);
    if (k != i && self[k] != index[k]) b[k] = number(index[k]);
  }
  if (!index_free) b[i] = number(index[i]);
  return {a, b};
}
bool same_rank(const CallView& call) {
  return rank_of(call) != 0 && call.tensor("index").shape.size() == rank_of(call);
}
Texts gather_text(const CallView& call) {
  if (!same_rank(call)) return {};
  const auto axes = indexed_axes(call, true);
  return {annotation(axes, {axes[1]})};
}
// The index broadcasts with the tensor on all axes but `dim`; without `dim` both are flat.
Types take_along_dim(const CallView& call) {
  const TensorType &self = first(call), &index = index_tensor(call, "indices");
  if (!call.has("dim")) return {{{numel(index.shape)}, self.dtype}};
  if (index.shape.size() != self.shape.size()) misfit(call, self, index, "as many axes");
  const size_t i = dim_of(call);
  Shape read = self.shape, out = index.shape;
  read[i] = out[i] = 1;
  auto shape = broadcast(read, out);
  if (!shape) misfit(call, self, index, fmt::format("sizes that broadcast but for axis {}", i));
  (*shape)[i] = index.shape[i];
  return {{*shape, self.dtype}};
}
Types scatter(const CallView& call) {
  const TensorType &self = first(call), &index = index_tensor(call);
  if (numel(index.shape) != 0) {
    check_gather(call, self, index);
    const TensorType* src = call.maybe_tensor("src");
    for (size_t k = 0; src != nullptr && k < index.shape.size(); ++k)
      if (index.shape[k] > src->shape.at(k)) misfit(call, *src, index, "an index within src");
  }
  return {self};
}
Texts scatter_text(const CallView& call) {
  if (!same_rank(call)) return {};
  auto in = indexed_axes(call, false);
  const DimTexts out = in[0];
  for (const auto name : {"src", "value"})
    if (const TensorType* src = call.maybe_tensor(name)) {
      if (src->shape.empty()) {
        in.push_back({"1"});
      } else if (src->shape == call.tensor("index").shape) {
        in.push_back(in[1]);
      } else {
        return {};
      }
    }
  return {annotation(in, {out})};
}
Types index_add(const CallView& call) {
  const TensorType &self = first(call), &index = index_tensor(call);
  if (const TensorType* source = call.maybe_tensor("source"); source && !self.shape.empty()) {
    Shape expected = self.shape;
    expected[dim_of(call)] = numel(index.shape);
    if (source->shape != expected)
      misfit(call, self, *source, "a source of shape " + to_string(expected));
  }
  return {self};
}
Texts index_add_text(const CallView& call) {
  if (rank_of(call) == 0 || call.tensor("index").shape.empty()) return {};
  const size_t i = dim_of(call);
  const std::string count = number(numel(call.tensor("index").shape));
  DimTexts self = letters(rank_of(call)), source = self;
  self[i] = number(first(call).shape[i]);
  source[i] = count;
  std::vector<DimTexts> in = {self, {count}};
  if (const TensorType* t = call.maybe_tensor("source"))
    in.push_back(t->shape.empty() ? DimTexts{} : source);
  if (call.maybe_tensor("value") != nullptr) in.push_back({});
  return {annotation(in, {self})};
}

// --- advanced indexing ---------------------------------------------------------------------------

// Where the indexed axes go and over which shape their indices broadcast.
struct Advanced {
  std::vector<bool> indexed;  // one flag an axis of self
  Shape index_shape;
  size_t insert_at = 0;  // position of the index axes in the result
  Shape result;
};
Advanced advanced(const CallView& call) {
  const TensorType& self = call.tensor("self");
  const auto indices = call.tensors("indices");
  Advanced a;
  a.indexed.assign(self.shape.size(), false);
  if (indices.size() > self.shape.size())
    call.fail(fmt::format("{} indices for {}", indices.size(), to_string(self)));
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == nullptr) continue;
    const DType dtype = indices[i]->dtype;
    if (dtype == DType::boolean || dtype == DType::u8)
      call.fail("a boolean index makes a data-dependent shape, which cannot be traced");
    if (dtype != DType::i64 && dtype != DType::i32)
      call.fail(fmt::format("index {} is {}; expected int64 or int32", i, to_string(*indices[i])));
    a.indexed[i] = true;
  }
  a.index_shape = broadcast_all(call, indices);
  size_t first_at = self.shape.size(), last_at = 0, count = 0;
  for (size_t i = 0; i < a.indexed.size(); ++i)
    if (a.indexed[i]) {
      first_at = std::min(first_at, i);
      last_at = i;
      ++count;
    }
  const bool adjacent = count == 0 || last_at - first_at + 1 == count;
  a.insert_at = adjacent && count > 0 ? first_at : 0;
  for (size_t i = 0; i < self.shape.size(); ++i)
    if (!a.indexed[i]) a.result.push_back(self.shape[i]);
  a.result.insert(a.result.begin() + static_cast<long>(a.insert_at), a.index_shape.begin(),
                  a.index_shape.end());
  return a;
}
Types index(const CallView& call) {
  return {{advanced(call).result, call.tensor("self").dtype}};
}
// Axes that are not indexed are spatial, and so are the axes of the indices.
Texts index_text(const CallView& call) {
  const Advanced a = advanced(call);
  const Shape& self = call.tensor("self").shape;
  const DimTexts names = letters(a.result.size());
  const auto begin = names.begin() + static_cast<long>(a.insert_at);
  const DimTexts index_names(begin, begin + static_cast<long>(a.index_shape.size()));
  DimTexts rest = names, dims;
  rest.erase(rest.begin() + static_cast<long>(a.insert_at),
             rest.begin() + static_cast<long>(a.insert_at + a.index_shape.size()));
  size_t next = 0;
  for (size_t i = 0; i < self.size(); ++i)
    dims.push_back(a.indexed[i] ? number(self[i]) : rest[next++]);
  std::vector<DimTexts> in = {dims};
  for (const TensorType* t : call.tensors("indices")) {
    if (t == nullptr) continue;
    DimTexts one;
    const size_t shift = a.index_shape.size() - t->shape.size();
    for (size_t i = 0; i < t->shape.size(); ++i)
      one.push_back(t->shape[i] == 1 && a.index_shape[i + shift] != 1 ? "1"
                                                                      : index_names[i + shift]);
    in.push_back(one);
  }
  return {annotation(in, {names})};
}
Types index_put(const CallView& call) {
  const Shape target = advanced(call).result;
  const TensorType& values = call.tensor("values");
  const auto shape = broadcast(target, values.shape);
  if (!shape || *shape != target)
    misfit(call, call.tensor("self"), values, "values that broadcast to " + to_string(target));
  return {call.tensor("self")};
}

// --- writing into a window -----------------------------------------------------------------------

Types window(const CallView& call) {
  const TensorType &self = first(call), &src = call.tensor("src");
  Shape expected = self.shape;
  const size_t i = dim_of(call);
  if (call.base() == "aten::select_scatter")
    expected.erase(expected.begin() + static_cast<long>(i));
  else
    expected.at(i) = slice_length(call, self.shape.at(i));
  if (src.shape != expected) misfit(call, self, src, "a source of shape " + to_string(expected));
  return {self};
}
Texts window_text(const CallView& call) {
  const size_t i = dim_of(call);
  DimTexts self = letters(rank_of(call)), src = self;
  self[i] = number(first(call).shape[i]);
  if (call.base() == "aten::select_scatter")
    src.erase(src.begin() + static_cast<long>(i));
  else
    src[i] = number(call.tensor("src").shape[i]);
  return {annotation({self, src}, {self})};
}
Types diagonal_scatter(const CallView& call) {
  return {call.tensor("self")};
}
// Derivatives of windows: a gradient put into zeros of `input_sizes`.
Types window_backward(const CallView& call) {
  return {{call.ints("input_sizes"), first(call).dtype}};
}

// --- embeddings ----------------------------------------------------------------------------------

Types embedding(const CallView& call) {
  const TensorType &weight = call.tensor("weight"), &indices = index_tensor(call, "indices");
  if (weight.shape.size() != 2)
    call.fail("weight is " + to_string(weight) + "; expected [rows, width]");
  Shape out = indices.shape;
  out.push_back(weight.shape[1]);
  return {{out, weight.dtype}};
}
// Rows may lie on several devices: each gives the rows it has, zeros else. How often a row comes is
// counted over all indices.
Texts embedding_text(const CallView& call) {
  if (call.boolean("scale_grad_by_freq")) return {"v^ e, *^ -> *^ e"};
  return {call.boolean("sparse") ? "v^ e, * -> * e" : "v+ e, * -> * e"};
}
Types embedding_backward(const CallView& call) {
  const TensorType& grad = call.tensor("grad_output");
  return {{{call.integer("num_weights"), grad.shape.back()}, grad.dtype}};
}
// The sum over the positions can be split when no row is scaled by its count.
Texts embedding_backward_text(const CallView& call) {
  const std::string rows = number(call.integer("num_weights"));
  if (call.boolean("scale_grad_by_freq")) return {"*^ e, *^ -> " + rows + " e"};
  return {"*+ e, *+ -> " + rows + " e"};
}
Types one_hot(const CallView& call) {
  const int64_t classes = call.integer("num_classes", -1);
  if (classes < 0) call.fail("num_classes must be given: counting them depends on the data");
  Shape out = index_tensor(call, "self").shape;
  out.push_back(classes);
  return {{out, DType::i64}};
}
Texts one_hot_text(const CallView& call) {
  return {"* -> * " + number(call.integer("num_classes", -1))};
}
Types data_dependent(const CallView& call) {
  call.fail(
      "the shape of the result depends on the data, which cannot be traced; use where, "
      "masked_fill or a mask");
}

// Rows of a table that this device does not hold are zeros: an addend.
std::optional<std::vector<Ref>> embedding_part(Part& p) {
  if (p.placed.ranks_of("weight", [](int64_t dim) { return dim == 0; }).empty())
    return std::nullopt;
  const auto [positions, outside] = p.local_positions(p.in("indices"), "weight", 0);
  std::vector<NamedArg> local = p.args();
  for (NamedArg& a : local) {
    if (a.name == "indices") a.value = positions;
    if (a.name == "padding_idx")
      if (auto* padding = std::get_if<int64_t>(&a.value); padding && *padding >= 0)
        *padding = p.placed.place("weight", 0, [row = *padding](int64_t start, int64_t stop) {
          return row >= start && row < stop ? row - start : -1;
        });
  }
  const Ref found = p.apply(p.op(), std::move(local)).front();
  return {{p.grad("aten::masked_fill.Scalar", found, p.e("aten::unsqueeze", outside, -1), 0.0)}};
}

}  // namespace

void add_indexing(Records& records) {
  records.add({"aten::index_select"}, {.infer = index_select, .annotations = index_select_text});
  records.add({"aten::gather"}, {.infer = gather, .annotations = gather_text});
  records.add({"aten::take_along_dim"}, {.infer = take_along_dim});
  records.add({"aten::scatter", "aten::scatter.value", "aten::scatter.src", "aten::scatter_add"},
              {.infer = scatter, .annotations = scatter_text});
  records.add({"aten::index_add", "aten::index_copy", "aten::index_fill"},
              {.infer = index_add, .annotations = index_add_text});
  records.add({"aten::index"}, {.infer = index, .annotations = index_text});
  records.add({"aten::index_put"}, {.infer = index_put});
  records.add({"aten::slice_scatter", "aten::select_scatter"},
              {.infer = window, .annotations = window_text});
  records.add({"aten::slice_backward", "aten::select_backward", "aten::unfold_backward",
               "aten::diagonal_backward"},
              {.infer = window_backward});
  records.add({"aten::diagonal_scatter"}, {.infer = diagonal_scatter});
  records.add({"aten::embedding"}, {.infer = embedding, .annotations = embedding_text});
  records.add({"aten::embedding_dense_backward"},
              {.infer = embedding_backward, .annotations = embedding_backward_text});
  records.add({"aten::one_hot"}, {.infer = one_hot, .annotations = one_hot_text, .constant = true});
  records.add({"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2",
               "aten::bincount", "aten::argwhere", "aten::_unique", "aten::unique_consecutive"},
              {.infer = data_dependent});

  records.set({"aten::embedding"}, [](Record& r) { r.dense = Dense::always; });
  records.set({"aten::gather", "aten::index_select"}, [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::embedding"}, [](Record& r) { r.kind = Kind::embedding; });
  records.set({"aten::embedding"}, [](Record& r) {
    r.assisted = [](const CallView&, const annotate::Split& split) { return cuts_first(split, 0); };
    r.part = embedding_part;
  });

  records.examples("slice_backward", "{ f(4, 2), { 4, 6 }, 1, 1, 5, 2 }");
  records.examples("select_backward", "{ f(4), { 4, 6 }, 1, 2 }");
  records.examples("unfold_backward", "{ f(4, 2, 3), { 4, 6 }, 1, 3, 2 }");
  records.examples("diagonal_backward", "{ f(4), { 4, 6 }, 0, 0, 1 }");
  records.examples("index_select", "{ f(4, 6), 1, i(6, 8) }, { f(4, 6), 0, i(4, 2) }");
  records.examples(
      "gather",
      "{ f(4, 6), 1, i(6, 4, 8) }, { f(4, 6), 0, i(4, 2, 6) }, { f(4, 6), 1, i(6, 2, 3) }");
  records.examples("take_along_dim", "{ f(4, 6), i(6, 4, 2), 1 }, { f(4, 6), i(24, 5) }");
  records.examples("scatter.src",
                   "{ f(4, 6), 1, ints { { 0, 3 }, { 1, 2 }, { 5, 4 }, { 2, 0 } }, f(4, 2) }");
  records.examples("scatter.value", "{ f(4, 6), 1, i(6, 4, 1), 1.5 }");
  records.examples(
      "scatter", "{ op = 'scatter.reduce', f(4, 6), 1, i(6, 4, 2), f(4, 2), { reduce = 'add' } }");
  records.examples("scatter_add", "{ f(4, 6), 1, i(6, 4, 8), f(4, 8) }");
  records.examples("index_add", "{ f(4, 6), 1, i(6, 8), f(4, 8) }");
  records.examples("index_copy", "{ f(4, 6), 1, ints { 5, 0 }, f(4, 2) }");
  records.examples(
      "index_fill",
      "{ f(4, 6), 1, ints { 5, 0 }, 1.5 }, { f(4, 6), 0, ints { 1 }, T.scalar(2, 'float64') }");
  records.examples("index",
                   "{ f(4, 6), { i(4, 8) } }, { f(4, 6, 2), { i(4, 8, 2), i(6, 2) } }, { f(4, 6, "
                   "2), { false, i(6, 4) } }");
  records.examples(
      "index_put",
      "{ f(4, 6), { ints { 0, 3 } }, f(2, 6) }, { f(4, 6), { i(4, 5), i(6, 5) }, f(5), true }");
  records.examples("slice_scatter", "{ f(4, 6), f(4, 2), 1, 1, 5, 2 }");
  records.examples("select_scatter", "{ f(4, 6), f(4), 1, 2 }");
  records.examples("diagonal_scatter", "{ f(4, 6), f(4) }");
  records.examples("embedding", "{ f(10, 6), i(10, 4, 8) }");
  records.examples(
      "embedding_dense_backward",
      "{ f(4, 8, 6), i(10, 4, 8), 10, -1, false }, { f(8, 6), i(10, 8), 10, 2, true }");
  records.examples("one_hot", "{ i(5, 4, 6), 5 }");
  records.examples("nonzero argwhere", "{ b(4, 6), refused = true }");
  records.examples("masked_select", "{ f(4, 6), b(4, 6), refused = true }");
  records.examples("bincount", "{ i(5, 8), refused = true }");
  records.examples("_unique", "{ f(8), refused = true }");
  records.examples("_unique2 unique_consecutive", "{ f(8), refused = true }");
  records.examples("unique_dim", "{ f(4, 6), 0, refused = true }");
}

}  // namespace nns::operators
