// Rows of operators that change the shape and move elements, not their values.
#include <algorithm>

#include "annotate/rows.h"

namespace nns::annotate {
namespace {

TensorType with_shape(const CallView& call, Shape shape) {
  return {std::move(shape), first(call).dtype};
}
size_t rank_of(const CallView& call) {
  return first(call).shape.size();
}
size_t dim_of(const CallView& call, std::string_view name = "dim") {
  return axis(call, call.integer(name), rank_of(call));
}
std::string number(int64_t x) {
  return std::to_string(x);
}

// --- reshaping: one input, one output of equal count
// ------------------------------------------------

Types view(const CallView& call) {
  const auto name = call.find("size") != nullptr ? "size" : "shape";
  if (call.find(name) == nullptr) call.fail("a view as another dtype cannot be traced");
  return {with_shape(call, resolve_size(call, call.ints(name), numel(first(call).shape)))};
}
Types view_as(const CallView& call) {
  return {
      with_shape(call, resolve_size(call, call.tensor("other").shape, numel(first(call).shape)))};
}
Types flatten(const CallView& call) {
  const Shape& in = first(call).shape;
  if (in.empty()) return {with_shape(call, {1})};
  const size_t a = axis(call, call.integer("start_dim", 0), in.size());
  const size_t b = axis(call, call.integer("end_dim", -1), in.size());
  if (a > b) call.fail(fmt::format("start_dim {} comes after end_dim {}", a, b));
  Shape out(in.begin(), in.begin() + static_cast<long>(a));
  int64_t product = 1;
  for (size_t i = a; i <= b; ++i) product *= in[i];
  out.push_back(product);
  out.insert(out.end(), in.begin() + static_cast<long>(b) + 1, in.end());
  return {with_shape(call, out)};
}
Types unflatten(const CallView& call) {
  const Shape& in = first(call).shape;
  const size_t i = dim_of(call);
  const Shape sizes = resolve_size(call, call.ints("sizes"), in.at(i));
  Shape out(in.begin(), in.begin() + static_cast<long>(i));
  out.insert(out.end(), sizes.begin(), sizes.end());
  out.insert(out.end(), in.begin() + static_cast<long>(i) + 1, in.end());
  return {with_shape(call, out)};
}
// The sizes argument spells only the new axes, so those stay whole.
Texts unflatten_text(const CallView& call) {
  const Shape& in = first(call).shape;
  const Shape out = unflatten(call)[0].shape;
  const size_t at = dim_of(call), extra = out.size() - in.size();
  DimTexts a = letters(in.size()), b;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool inside = i >= at && i <= at + extra;
    b.push_back(inside ? number(out[i]) : a[i < at ? i : i - extra]);
  }
  a[at] = number(in[at]);
  return {annotation({a}, {b})};
}
Types unsqueeze(const CallView& call) {
  Shape shape = first(call).shape;
  const size_t i = axis(call, call.integer("dim"), shape.size() + 1);
  shape.insert(shape.begin() + static_cast<long>(i), 1);
  return {with_shape(call, shape)};
}
Types squeeze(const CallView& call) {
  const Shape& in = first(call).shape;
  const auto* dim = call.find("dim");
  std::vector<bool> flags(in.size(), dim == nullptr);
  if (dim != nullptr)
    for (const int64_t d : call.ints("dim"))
      if (const size_t i = axis(call, d, in.size()); i < in.size()) flags[i] = true;
  Shape out;
  for (size_t i = 0; i < in.size(); ++i)
    if (!flags[i] || in[i] != 1) out.push_back(in[i]);
  return {with_shape(call, out)};
}
Texts reshaped(const CallView& call) {
  Texts texts = reshape_text(first(call).shape, infer(call)[0].shape);
  if (call.operands().size() > 1) {  // view_as: the second tensor has the output's shape
    const size_t arrow = texts[0].find(" -> ");
    texts[0].insert(arrow, ", " + texts[0].substr(arrow + 4));
  }
  return texts;
}

// --- permutations
// ---------------------------------------------------------------------------------

// Where each output axis comes from.
std::vector<size_t> order_of(const CallView& call) {
  const size_t rank = rank_of(call);
  std::vector<size_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = i;
  const auto base = call.base();
  if (base == "aten::permute") {
    const auto dims = call.ints("dims");
    if (dims.size() != rank)
      call.fail(fmt::format("{} axes for {}", dims.size(), to_string(first(call))));
    std::vector<bool> seen(rank, false);
    for (size_t i = 0; i < rank; ++i) {
      order[i] = axis(call, dims[i], rank);
      if (seen[order[i]]) call.fail(fmt::format("axis {} appears twice", order[i]));
      seen[order[i]] = true;
    }
  } else if (base == "aten::t") {
    if (rank > 2) call.fail(to_string(first(call)) + "; expected two axes at most");
    if (rank == 2) std::swap(order[0], order[1]);
  } else if (base == "aten::movedim") {
    const auto from = call.ints("source"), to = call.ints("destination");
    if (from.size() != to.size()) call.fail("source and destination differ in length");
    std::vector<int64_t> placed(rank, -1);
    std::vector<bool> used(rank, false);
    for (size_t i = 0; i < from.size(); ++i) {
      placed[axis(call, to[i], rank)] = static_cast<int64_t>(axis(call, from[i], rank));
      used[axis(call, from[i], rank)] = true;
    }
    size_t next = 0;
    for (size_t i = 0; i < rank; ++i) {
      while (placed[i] < 0 && used[next]) ++next;
      order[i] = placed[i] >= 0 ? static_cast<size_t>(placed[i]) : next++;
    }
  } else {  // transpose, swapaxes
    const bool axes = call.find("axis0") != nullptr;
    const size_t a = dim_of(call, axes ? "axis0" : "dim0"),
                 b = dim_of(call, axes ? "axis1" : "dim1");
    if (rank > 0) std::swap(order[a], order[b]);
  }
  return order;
}
Types permute(const CallView& call) {
  Shape out;
  for (const size_t i : order_of(call)) out.push_back(first(call).shape[i]);
  return {with_shape(call, out)};
}
Texts permute_text(const CallView& call) {
  const DimTexts in = letters(rank_of(call));
  DimTexts out;
  for (const size_t i : order_of(call)) out.push_back(in[i]);
  return {annotation({in}, {out})};
}

// --- growing
// --------------------------------------------------------------------------------------

Types expand(const CallView& call) {
  const Shape& in = first(call).shape;
  Shape size = call.find("other") != nullptr ? call.tensor("other").shape : call.ints("size");
  if (size.size() < in.size())
    call.fail(fmt::format("{} to {}; expected as many axes at least", to_string(first(call)),
                          to_string(size)));
  const size_t shift = size.size() - in.size();
  for (size_t i = 0; i < size.size(); ++i) {
    const int64_t have = i < shift ? 1 : in[i - shift];
    if (size[i] == -1 && i >= shift) size[i] = have;
    if (size[i] < 0 || (have != 1 && have != size[i]))
      call.fail(fmt::format("{} to {}; expected equal sizes where the tensor's is not 1",
                            to_string(first(call)), to_string(size)));
  }
  return {with_shape(call, size)};
}
Types repeat(const CallView& call) {
  const Shape& in = first(call).shape;
  Shape repeats = call.ints(call.find("repeats") != nullptr ? "repeats" : "dims");
  if (call.base() == "aten::tile" && repeats.size() < in.size())
    repeats.insert(repeats.begin(), in.size() - repeats.size(), 1);
  if (repeats.size() < in.size())
    call.fail(fmt::format("{} repeats for {}", repeats.size(), to_string(first(call))));
  const size_t shift = repeats.size() - in.size();
  for (size_t i = shift; i < repeats.size(); ++i) repeats[i] *= in[i - shift];
  return {with_shape(call, repeats)};
}
// Axes that keep their size keep their letter; all others are numbers. Aligned from the last.
Texts kept_axes(const CallView& call) {
  const Shape& in = first(call).shape;
  const Shape out = infer(call)[0].shape;
  const size_t shift = out.size() - in.size();
  DimTexts a, b;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool kept = i >= shift && in[i - shift] == out[i];
    if (i >= shift) a.push_back(kept ? letter(i) : number(in[i - shift]));
    b.push_back(kept ? letter(i) : number(out[i]));
  }
  return {annotation({a}, {b})};
}
Types repeat_interleave(const CallView& call) {
  if (call.maybe_tensor("repeats") != nullptr)
    call.fail("repeats given as a tensor make a data-dependent shape, which cannot be traced");
  const Shape& in = first(call).shape;
  if (!call.has("dim")) return {with_shape(call, {numel(in) * call.integer("repeats")})};
  Shape out = in;
  out.at(dim_of(call)) *= call.integer("repeats");
  return {with_shape(call, out)};
}
Texts repeat_interleave_text(const CallView& call) {
  return call.has("dim") ? kept_axes(call) : Texts{};
}
Types pad(const CallView& call) {
  Shape out = first(call).shape;
  const auto pads = call.ints("pad");
  if (pads.size() % 2 != 0 || pads.size() / 2 > out.size())
    call.fail(fmt::format("{} paddings for {}; expected two for each of its last axes", pads.size(),
                          to_string(first(call))));
  for (size_t i = 0; i < pads.size() / 2; ++i)
    out[out.size() - 1 - i] += pads[2 * i] + pads[2 * i + 1];
  for (const int64_t size : out)
    if (size < 0) call.fail(fmt::format("{} padded to {}", to_string(first(call)), to_string(out)));
  return {with_shape(call, out)};
}
Texts pad_text(const CallView& call) {
  const Shape& in = first(call).shape;
  const Shape out = infer(call)[0].shape;
  const size_t untouched = in.size() - call.ints("pad").size() / 2;
  DimTexts a = letters(in.size()), b = a;
  for (size_t i = untouched; i < in.size(); ++i) {
    a[i] = number(in[i]);
    b[i] = number(out[i]);
  }
  return {annotation({a}, {b})};
}

// --- joining
// --------------------------------------------------------------------------------------

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

// --- cutting
// --------------------------------------------------------------------------------------

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
  const int64_t offset = call.integer("offset", 0);
  const int64_t rows = in[a] + std::min<int64_t>(0, offset);
  const int64_t columns = in[b] - std::max<int64_t>(0, offset);
  Shape out;
  for (size_t i = 0; i < in.size(); ++i)
    if (i != a && i != b) out.push_back(in[i]);
  out.push_back(std::max<int64_t>(0, std::min(rows, columns)));
  return {with_shape(call, out)};
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

// --- moving within an axis: those axes stay whole
// ---------------------------------------------------

Texts frozen_dims(const CallView& call) {
  return aligned(call, axes(call, "dims", rank_of(call)));
}
Texts frozen_matrix(const CallView& call) {  // tril, triu
  std::vector<bool> frozen(rank_of(call), false);
  for (size_t i = frozen.size() < 2 ? 0 : frozen.size() - 2; i < frozen.size(); ++i)
    frozen[i] = true;
  return aligned(call, frozen);
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

std::vector<OpInfo> shape_rows() {
  Rows rows;
  rows.add(
      {"aten::view", "aten::_unsafe_view"},
      {.infer = view, .annotations = reshaped, .size_arg = "size", .view = true, .identity = true});
  rows.add({"aten::reshape"}, {.infer = view,
                               .annotations = reshaped,
                               .size_arg = "shape",
                               .view = true,
                               .identity = true});
  rows.add({"aten::view_as", "aten::reshape_as"},
           {.infer = view_as, .annotations = reshaped, .view = true, .identity = true});
  rows.add({"aten::flatten"}, {.infer = flatten, .annotations = reshaped, .view = true});
  rows.add({"aten::unflatten"}, {.infer = unflatten, .annotations = unflatten_text, .view = true});
  rows.add({"aten::unsqueeze"}, {.infer = unsqueeze, .annotations = reshaped, .view = true});
  rows.add({"aten::squeeze"},
           {.infer = squeeze, .annotations = reshaped, .view = true, .identity = true});

  rows.add({"aten::permute", "aten::transpose", "aten::t", "aten::movedim", "aten::swapaxes"},
           {.infer = permute, .annotations = permute_text, .view = true});

  rows.add({"aten::expand", "aten::broadcast_to"}, {.infer = expand,
                                                    .annotations = kept_axes,
                                                    .size_arg = "size",
                                                    .view = true,
                                                    .identity = true});
  rows.add({"aten::expand_as"},
           {.infer = expand, .annotations = spatial, .view = true, .identity = true});
  rows.add({"aten::repeat", "aten::tile"}, {.infer = repeat, .annotations = kept_axes});
  rows.add({"aten::repeat_interleave"},
           {.infer = repeat_interleave, .annotations = repeat_interleave_text});
  rows.add({"aten::pad", "aten::constant_pad_nd"}, {.infer = pad, .annotations = pad_text});

  rows.add({"aten::cat", "aten::concat", "aten::concatenate"},
           {.infer = cat, .annotations = cat_text});
  rows.add({"aten::stack"}, {.infer = stack, .annotations = stack_text});

  rows.add({"aten::split", "aten::split_with_sizes", "aten::chunk"},
           {.infer = split, .annotations = split_text, .view = true});
  rows.add({"aten::unbind"}, {.infer = unbind, .annotations = dropped_axis, .view = true});
  rows.add({"aten::select"}, {.infer = select, .annotations = dropped_axis, .view = true});
  rows.add({"aten::narrow"}, {.infer = narrow, .annotations = narrow_text, .view = true});
  rows.add({"aten::slice"},
           {.infer = slice, .annotations = kept_axes, .view = true, .identity = true});
  rows.add({"aten::unfold"}, {.infer = unfold, .annotations = unfold_text, .view = true});
  rows.add({"aten::diagonal"}, {.infer = diagonal, .annotations = diagonal_text, .view = true});

  rows.add({"aten::flip"}, {.infer = same, .annotations = frozen_dims});
  rows.add({"aten::roll"}, {.infer = same, .annotations = frozen_dims});
  rows.add({"aten::tril", "aten::triu"}, {.infer = same, .annotations = frozen_matrix});
  return rows.take();
}

}  // namespace nns::annotate
