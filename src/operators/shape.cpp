// Records of operators that change the shape or the order of axes: reshapes, permutations, padding.
#include <algorithm>

#include "operators/family.h"

namespace nns::operators {
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

// --- reshaping: one input, one output of equal count ---------------------------------------------

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

// --- permutations --------------------------------------------------------------------------------

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
  } else if (base == "aten::movedim" || base == "aten::moveaxis") {
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
  } else if (base == "aten::mT" || base == "aten::mH" || base == "aten::adjoint") {
    if (rank < 2) call.fail(to_string(first(call)) + "; expected two axes at least");
    std::swap(order[rank - 2], order[rank - 1]);
  } else if (base == "aten::numpy_T") {
    std::reverse(order.begin(), order.end());
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

// --- growing -------------------------------------------------------------------------------------

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
// Each part repeats a dimension of one element fewer times.
Rules expand_rules(const CallView& call) {
  const Shape in = first(call).shape, out = expand(call)[0].shape;
  const size_t shift = out.size() - in.size();
  Rules rules;
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t at = i + shift;
    if (in[i] != 1 || out[at] == 1) continue;
    const auto fewer = [at](std::vector<NamedArg> args, int64_t parts, int64_t) {
      for (NamedArg& a : args)
        if (a.name == "size") std::get<Shape>(a.value).at(at) /= parts;
      return args;
    };
    rules.push_back({0,
                     static_cast<int>(i),
                     {{}},
                     {{annotate::TensorSplit::Kind::dims, {static_cast<int>(at)}, false}},
                     fewer,
                     out[at]});
  }
  return rules;
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

// --- moving within an axis: those axes stay whole ------------------------------------------------

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

void add_shapes(Records& records) {
  records.add({"aten::view", "aten::_unsafe_view"}, {.infer = view,
                                                     .annotations = reshaped,
                                                     .size_arg = "size",
                                                     .view = View::strided,
                                                     .identity = true});
  records.add({"aten::reshape"}, {.infer = view,
                                  .annotations = reshaped,
                                  .size_arg = "shape",
                                  .view = View::reshape,
                                  .identity = true});
  records.add({"aten::view_as"},
              {.infer = view_as, .annotations = reshaped, .view = View::strided, .identity = true});
  records.add({"aten::reshape_as"},
              {.infer = view_as, .annotations = reshaped, .view = View::flatten, .identity = true});
  records.add({"aten::flatten", "aten::ravel"},
              {.infer = flatten, .annotations = reshaped, .view = View::flatten});
  records.add({"aten::unflatten"},
              {.infer = unflatten, .annotations = unflatten_text, .view = View::strided});
  records.add({"aten::unsqueeze"},
              {.infer = unsqueeze, .annotations = reshaped, .view = View::shape});
  records.add({"aten::squeeze"},
              {.infer = squeeze, .annotations = reshaped, .view = View::shape, .identity = true});

  records.add({"aten::permute"},
              {.infer = permute, .annotations = permute_text, .view = View::permute});
  records.add({"aten::transpose", "aten::swapaxes", "aten::swapdims"},
              {.infer = permute, .annotations = permute_text, .view = View::swap});
  records.add({"aten::t"},
              {.infer = permute, .annotations = permute_text, .view = View::transpose});
  records.add({"aten::movedim", "aten::moveaxis"},
              {.infer = permute, .annotations = permute_text, .view = View::move});
  records.add({"aten::mT", "aten::mH", "aten::adjoint", "aten::numpy_T"},
              {.infer = permute, .annotations = permute_text, .view = View::perhaps});

  records.add({"aten::expand", "aten::broadcast_to"}, {.infer = expand,
                                                       .annotations = kept_axes,
                                                       .size_arg = "size",
                                                       .view = View::spread,
                                                       .identity = true,
                                                       .rules = expand_rules});
  records.add({"aten::expand_as"},
              {.infer = expand, .annotations = spatial, .view = View::spread, .identity = true});
  records.add({"aten::repeat", "aten::tile"}, {.infer = repeat, .annotations = kept_axes});
  records.add({"aten::repeat_interleave"},
              {.infer = repeat_interleave, .annotations = repeat_interleave_text});
  records.add({"aten::pad", "aten::constant_pad_nd"}, {.infer = pad, .annotations = pad_text});

  records.add({"aten::flip"}, {.infer = same, .annotations = frozen_dims});
  records.add({"aten::roll"}, {.infer = same, .annotations = frozen_dims});
  records.add({"aten::tril", "aten::triu", "aten::linalg_inv", "aten::inverse"},
              {.infer = same, .annotations = frozen_matrix});

  records.set({"aten::view", "aten::reshape", "aten::unsqueeze", "aten::squeeze", "aten::flatten",
               "aten::unflatten", "aten::view_as"},
              [](Record& r) { r.dense = Dense::kept; });
  records.set({"aten::view", "aten::reshape", "aten::expand"}, [](Record& r) {
    r.keeps = [](const CallView&, size_t, const HeldBy& held) { return held("self"); };
  });

  records.examples(
      "view _unsafe_view reshape",
      "{ f(4, 6), { 2, 2, 6 } }, { f(4, 6), { 24 } }, { f(4, 6), { -1, 3 } }, { f(4, 6), { 8, 3 } "
      "}, { f(6, 4), { 4, 6 } }, { f(1, 4, 1), { 4 } }, { f(2, 4, 6), { 8, 1, 6 } }");
  records.examples("view_as reshape_as", "{ f(4, 6), f(2, 2, 6) }");
  records.examples("flatten", "{ f(2, 4, 6) }, { f(2, 4, 6), 1 }, { f(2, 4, 6), 0, 1 }");
  records.examples("ravel", "{ f(4, 6) }");
  records.examples("unflatten", "{ f(4, 6), 1, { 2, 3 } }, { f(4, 6), 0, { 2, -1 } }");
  records.examples("unsqueeze", "{ f(4, 6), 1 }, { f(4), -1 }");
  records.examples("squeeze",
                   "{ f(1, 4, 1, 6) }, { f(1, 4, 1), 0 }, { f(4, 6), 0 }, { op = 'squeeze.dims', "
                   "f(1, 4, 1), { 0, 2 } }");
  records.examples("permute", "{ f(2, 4, 6), { 2, 0, 1 } }");
  records.examples("transpose swapaxes swapdims", "{ f(2, 4, 6), 0, -1 }");
  records.examples("t", "{ f(4, 6) }, { f(4) }");
  records.examples("mT mH adjoint", "{ f(2, 4, 6) }");
  records.examples("numpy_T", "{ f(4, 6) }");
  records.examples("movedim moveaxis", "{ f(2, 4, 6), 0, 2 }, { f(2, 4, 6), { 0, 1 }, { 2, 0 } }");
  records.examples("expand broadcast_to",
                   "{ f(1, 4, 6), { 3, 4, 6 } }, { f(4, 1), { 2, 4, 6 } }, { f(4, 6), { -1, 6 } }");
  records.examples("expand_as", "{ f(4, 1), f(2, 4, 6) }");
  records.examples("repeat tile", "{ f(4, 6), { 2, 1, 3 } }, { f(4, 6), { 1, 2 } }");
  records.examples("tile", "{ f(4, 6), { 2 } }");
  records.examples("repeat_interleave",
                   "{ op = 'repeat_interleave.self_int', f(4, 6), 3 }, { op = "
                   "'repeat_interleave.self_int', f(4, 6), 2, 1 }");
  records.examples("pad", "{ f(4, 6), { 1, 2 } }, { f(2, 4, 6), { 1, 0, 0, 3 }, 'constant', 1.5 }");
  records.examples("constant_pad_nd", "{ f(4, 6), { 1, 2 } }, { f(4, 6), { -1, 0, 2, 2 }, 3 }");
  records.examples("flip", "{ f(4, 6), { 1 } }, { f(4, 6), { 0, 1 } }");
  records.examples("roll", "{ f(4, 6), { 1 }, { 0 } }, { f(4, 6), { 3 } }");
  records.examples("tril triu", "{ f(4, 6) }, { f(2, 4, 4), 1 }");
  records.examples("linalg_inv inverse", "{ f(2, 4, 4), tolerance = 1e-9 }");
}

}  // namespace nns::operators
