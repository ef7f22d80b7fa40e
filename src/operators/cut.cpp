// Records of operators that join tensors and cut them to pieces.
#include <algorithm>
#include <cstdlib>

#include "operators/family.h"

namespace nns::operators {
namespace {

size_t rank_of(const CallView& call) {
  return first(call).shape.size();
}
std::string number(int64_t x) {
  return std::to_string(x);
}

// --- joining -------------------------------------------------------------------------------------

Types cat(const CallView& call) {
  const auto tensors = call.tensors("tensors");
  std::vector<Operand> operands;
  const TensorType* lead = nullptr;
  for (const TensorType* t : tensors) {
    if (t == nullptr) call.fail("the list holds nil");
    operands.push_back({t, {}});
    const bool legacy_empty = t->shape == Shape{0};  // PyTorch skips it
    if (lead == nullptr && !legacy_empty) lead = t;
  }
  if (tensors.empty()) call.fail("the list is empty");
  if (lead == nullptr) return {*tensors[0]};
  if (lead->shape.empty()) call.fail("a 0-dim tensor cannot be concatenated");
  const size_t i = axis(call, call.integer("dim", 0), lead->shape.size());
  Shape out = lead->shape;
  out[i] = 0;
  for (const TensorType* t : tensors) {
    if (t->shape == Shape{0}) continue;
    Shape other = t->shape;
    if (other.size() == out.size()) other[i] = lead->shape[i];
    if (other != lead->shape)
      misfit(call, *lead, *t, fmt::format("equal sizes but for axis {}", i));
    out[i] += t->shape[i];
  }
  return {{out, result_type(operands)}};
}
Texts cat_text(const CallView& call) {
  const Shape out = cat(call)[0].shape;
  const size_t i = axis(call, call.integer("dim", 0), out.size());
  std::vector<DimTexts> in;
  for (const TensorType* t : call.operands()) {
    if (t->shape.size() != out.size()) {
      in.push_back({number(t->shape[0])});
      continue;
    }
    in.push_back(letters(out.size()));
    in.back()[i] = number(t->shape[i]);
  }
  DimTexts result = letters(out.size());
  result[i] = number(out[i]);
  return {annotation(in, {result})};
}
Types stack(const CallView& call) {
  const auto tensors = call.tensors("tensors");
  if (tensors.empty()) call.fail("the list is empty");
  std::vector<Operand> operands;
  for (const TensorType* t : tensors) {
    if (t == nullptr) call.fail("the list holds nil");
    if (t->shape != tensors[0]->shape) misfit(call, *tensors[0], *t, "equal shapes");
    operands.push_back({t, {}});
  }
  Shape out = tensors[0]->shape;
  const size_t i = axis(call, call.integer("dim", 0), out.size() + 1);
  out.insert(out.begin() + static_cast<long>(i), static_cast<int64_t>(tensors.size()));
  return {{out, result_type(operands)}};
}
Texts stack_text(const CallView& call) {
  const size_t rank = rank_of(call), n = call.operands().size();
  const size_t i = axis(call, call.integer("dim", 0), rank + 1);
  DimTexts out = letters(rank);
  out.insert(out.begin() + static_cast<long>(i), number(static_cast<int64_t>(n)));
  return {annotation(std::vector<DimTexts>(n, letters(rank)), {out})};
}

// --- cutting -------------------------------------------------------------------------------------

Types pieces(const CallView& call, size_t dim, const std::vector<int64_t>& sizes) {
  Types out;
  for (const int64_t size : sizes) {
    out.push_back(first(call));
    out.back().shape[dim] = size;
  }
  return out;
}
// Sizes of equal pieces, the last one smaller.
std::vector<int64_t> cut(int64_t total, int64_t size) {
  if (total == 0) return {0};
  std::vector<int64_t> sizes;
  for (int64_t at = 0; at < total; at += size) sizes.push_back(std::min(size, total - at));
  return sizes;
}
size_t cut_axis(const CallView& call) {
  if (rank_of(call) == 0) call.fail("a 0-dim tensor cannot be cut");
  return axis(call, call.integer("dim", 0), rank_of(call));
}
Types split(const CallView& call) {
  const size_t i = cut_axis(call);
  const int64_t total = first(call).shape[i];
  std::vector<int64_t> sizes;
  if (call.find("chunks") != nullptr) {
    const int64_t n = call.integer("chunks");
    if (n < 1) call.fail(fmt::format("{} chunks; expected one at least", n));
    const int64_t size = (total + n - 1) / n;
    sizes = size == 0 ? std::vector<int64_t>(static_cast<size_t>(n), 0) : cut(total, size);
  } else if (call.find("split_sizes") != nullptr) {
    sizes = call.ints("split_sizes");
  } else if (std::holds_alternative<int64_t>(*call.find("split_size"))) {
    const int64_t size = call.integer("split_size");
    if (size < 0 || (size == 0 && total != 0)) call.fail(fmt::format("split_size is {}", size));
    sizes = size == 0 ? std::vector<int64_t>{0} : cut(total, size);
  } else {
    sizes = call.ints("split_size");
  }
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  if (sum != total)
    call.fail(fmt::format("pieces {} of {} along axis {}; expected a sum of {}", to_string(sizes),
                          to_string(first(call)), i, total));
  return pieces(call, i, sizes);
}
Texts split_text(const CallView& call) {
  const size_t i = cut_axis(call);
  DimTexts in = letters(rank_of(call));
  in[i] = number(first(call).shape[i]);
  std::vector<DimTexts> out;
  for (const TensorType& piece : infer(call)) {
    out.push_back(in);
    out.back()[i] = number(piece.shape[i]);
  }
  return {annotation({in}, out)};
}
// tensor_split: the first pieces are larger by one, or cuts at given indices.
Types tensor_split(const CallView& call) {
  const size_t i = cut_axis(call);
  const int64_t total = first(call).shape[i];
  std::vector<int64_t> sizes;
  if (call.has("sections")) {
    const int64_t n = call.integer("sections");
    if (n < 1) call.fail(fmt::format("{} sections; expected one at least", n));
    for (int64_t k = 0; k < n; ++k) sizes.push_back(total / n + (k < total % n ? 1 : 0));
  } else {
    int64_t at = 0;
    for (int64_t next : call.ints("indices")) {
      next = std::clamp<int64_t>(next < 0 ? next + total : next, at, total);
      sizes.push_back(next - at);
      at = next;
    }
    sizes.push_back(total - at);
  }
  return pieces(call, i, sizes);
}
Types unbind(const CallView& call) {
  const size_t i = cut_axis(call);
  TensorType piece = first(call);
  piece.shape.erase(piece.shape.begin() + static_cast<long>(i));
  return Types(static_cast<size_t>(first(call).shape[i]), piece);
}
Types select(const CallView& call) {
  const size_t i = cut_axis(call);
  const int64_t size = first(call).shape[i], index = call.integer("index");
  if (index < -size || index >= size)
    call.fail(fmt::format("index {} of {} along axis {}", index, to_string(first(call)), i));
  TensorType out = first(call);
  out.shape.erase(out.shape.begin() + static_cast<long>(i));
  return {out};
}
Texts dropped_axis(const CallView& call) {  // unbind, select
  const size_t i = cut_axis(call);
  DimTexts in = letters(rank_of(call)), out = in;
  in[i] = number(first(call).shape[i]);
  out.erase(out.begin() + static_cast<long>(i));
  return {annotation({in}, std::vector<DimTexts>(infer(call).size(), out))};
}
Types narrow(const CallView& call) {
  const size_t i = cut_axis(call);
  const int64_t size = first(call).shape[i], length = call.integer("length");
  int64_t start = call.integer("start");
  if (start < 0) start += size;
  if (start < 0 || length < 0 || start + length > size)
    call.fail(fmt::format("start {} and length {} of {} along axis {}", start, length,
                          to_string(first(call)), i));
  return pieces(call, i, {length});
}
Texts narrow_text(const CallView& call) {  // start and length are of the whole axis
  const size_t i = cut_axis(call);
  DimTexts in = letters(rank_of(call)), out = in;
  in[i] = number(first(call).shape[i]);
  out[i] = number(call.integer("length"));
  return {annotation({in}, {out})};
}
Types slice(const CallView& call) {
  const size_t i = cut_axis(call);
  return pieces(call, i, {slice_length(call, first(call).shape[i])});
}
Types unfold(const CallView& call) {
  TensorType out = first(call);
  const size_t i = axis(call, call.integer("dimension"), out.shape.size());
  const int64_t size = call.integer("size"), step = call.integer("step");
  const int64_t have = out.shape.empty() ? 1 : out.shape[i];
  if (size < 0 || size > have || step < 1)
    call.fail(fmt::format("windows of {} every {} of {}", size, step, to_string(out)));
  if (!out.shape.empty()) out.shape[i] = (have - size) / step + 1;
  out.shape.push_back(size);
  return {out};
}
Texts unfold_text(const CallView& call) {
  const Shape& in = first(call).shape;
  if (in.empty()) return {};
  const size_t i = axis(call, call.integer("dimension"), in.size());
  const Shape shape = infer(call)[0].shape;
  DimTexts a = letters(in.size()), b = a;
  a[i] = number(in[i]);
  b[i] = number(shape[i]);
  b.push_back(number(shape.back()));
  return {annotation({a}, {b})};
}
Types diagonal(const CallView& call) {
  const Shape& in = first(call).shape;
  const size_t a = axis(call, call.integer("dim1", 0), in.size());
  const size_t b = axis(call, call.integer("dim2", 1), in.size());
  if (a == b || in.size() < 2) call.fail("the two axes of a diagonal must differ");
  const int64_t offset = call.integer("offset", call.integer("diagonal", 0));
  const int64_t rows = in[a] + std::min<int64_t>(0, offset);
  const int64_t columns = in[b] - std::max<int64_t>(0, offset);
  Shape out;
  for (size_t i = 0; i < in.size(); ++i)
    if (i != a && i != b) out.push_back(in[i]);
  out.push_back(std::max<int64_t>(0, std::min(rows, columns)));
  return {{out, first(call).dtype}};
}
Types diag(const CallView& call) {  // a vector becomes a matrix, a matrix its diagonal
  const Shape& in = first(call).shape;
  if (in.size() == 2) return diagonal(call);
  if (in.size() != 1) call.fail(to_string(first(call)) + "; expected a vector or a matrix");
  const int64_t n = in[0] + std::abs(call.integer("diagonal", 0));
  return {{{n, n}, first(call).dtype}};
}
Texts diagonal_text(const CallView& call) {
  const Shape& in = first(call).shape;
  const size_t a = axis(call, call.integer("dim1", 0), in.size());
  const size_t b = axis(call, call.integer("dim2", 1), in.size());
  DimTexts dims = letters(in.size()), out;
  for (size_t i = 0; i < in.size(); ++i)
    if (i != a && i != b) out.push_back(dims[i]);
  dims[a] = number(in[a]);
  dims[b] = number(in[b]);
  out.push_back(number(infer(call)[0].shape.back()));
  return {annotation({dims}, {out})};
}

}  // namespace

int64_t slice_length(const CallView& call, int64_t size) {
  const auto clamp = [size](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t start = clamp(call.integer("start", 0));
  const int64_t end = std::max(start, clamp(call.integer("end", size)));
  const int64_t step = call.integer("step", 1);
  if (step < 1) call.fail(fmt::format("step {}; expected 1 at least", step));
  return (end - start + step - 1) / step;
}

void add_cuts(Records& records) {
  records.add({"aten::cat", "aten::concat", "aten::concatenate"},
              {.infer = cat, .annotations = cat_text});
  records.add({"nnscaler::join"}, {.infer = cat, .annotations = cat_text, .view = View::perhaps});
  records.add({"aten::stack"}, {.infer = stack, .annotations = stack_text});

  records.add({"aten::split", "aten::split_with_sizes", "aten::chunk"},
              {.infer = split, .annotations = split_text, .view = View::split});
  records.add({"aten::tensor_split"},
              {.infer = tensor_split, .annotations = split_text, .view = View::split});
  records.add({"aten::unbind"},
              {.infer = unbind, .annotations = dropped_axis, .view = View::unbind});
  records.add({"aten::select"},
              {.infer = select, .annotations = dropped_axis, .view = View::select});
  records.add({"aten::narrow"},
              {.infer = narrow, .annotations = narrow_text, .view = View::narrow});
  records.add({"aten::slice"},
              {.infer = slice, .annotations = kept_axes, .view = View::slice, .identity = true});
  records.add({"aten::unfold"},
              {.infer = unfold, .annotations = unfold_text, .view = View::perhaps});
  records.add({"aten::diagonal"},
              {.infer = diagonal, .annotations = diagonal_text, .view = View::diagonal});

  records.add({"aten::diag"}, {.infer = diag});

  records.set({"aten::cat", "aten::stack"}, [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::select", "aten::slice", "aten::narrow"},
              [](Record& r) { r.dense = Dense::leading; });

  records.examples("cat concat concatenate nnscaler::join",
                   "{ { f(4, 6), f(2, 6) } }, { { f(4, 6), f(4, 2) }, 1 }");
  records.examples("stack", "{ { f(4, 6), f(4, 6) } }, { { f(4, 6), f(4, 6), f(4, 6) }, -1 }");
  records.examples("split", "{ f(4, 6), 4, 1 }, { op = 'split.sizes', f(4, 6), { 1, 3 } }");
  records.examples("split_with_sizes", "{ f(4, 6), { 2, 4 }, 1 }");
  records.examples("chunk", "{ f(4, 6), 4, 1 }, { f(5, 6), 3 }");
  records.examples("tensor_split",
                   "{ op = 'tensor_split.sections', f(4, 7), 3, 1 }, { op = "
                   "'tensor_split.indices', f(4, 6), { 1, 4 }, 1 }");
  records.examples("unbind", "{ f(4, 6) }, { f(4, 6), 1 }");
  records.examples("select", "{ f(4, 6), 0, -1 }, { f(4, 6), 1, 2 }");
  records.examples("narrow", "{ f(4, 6), 1, 2, 3 }, { f(4, 6), 0, 0, 4 }");
  records.examples(
      "slice",
      "{ f(4, 6), 1, 1, 5, 2 }, { n = 4, f(4, 6), 0, nil, nil }, { n = 4, f(4, 6), 1, -3, nil }");
  records.examples("unfold", "{ f(4, 6), 1, 3, 2 }");
  records.examples("diagonal", "{ f(4, 6) }, { f(2, 4, 6), 1, 1, 2 }");
  records.examples("diag", "{ f(4) }, { f(4), -1 }, { f(4, 6), 1 }");
}

}  // namespace nns::operators
