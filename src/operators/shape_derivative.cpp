// Derivatives of operators that move elements without changing them.
#include <algorithm>
#include <numeric>

#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

void reshape_back(B& b) {
  b.give("self", b.e.reshape(b.grad(), b.shape("self")));
}
void sum_back(B& b) {
  b.give("self", b.grad());
}  // give() sums over broadcast dimensions

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back.at(static_cast<size_t>(order[i])) = static_cast<int64_t>(i);
  return back;
}

std::vector<int64_t> wrapped(B& b, std::string_view name) {
  std::vector<int64_t> dims = b.ints(name);
  for (int64_t& d : dims)
    if (d < 0) d += b.rank("self");
  return dims;
}

void permute(B& b) {
  b.give("self", b("aten::permute", b.grad(), inverse(wrapped(b, "dims"))));
}

void movedim(B& b) {
  b.give("self", b("aten::movedim.intlist", b.grad(), b.ints("destination"), b.ints("source")));
}

void transpose(B& b) {
  b.give("self", b.e.transpose(b.grad(), b.dim("dim0"), b.dim("dim1")));
}

void t(B& b) {
  b.give("self", b.rank("self") < 2 ? b.grad() : b.e.t(b.grad()));
}

// Tiles in a dimension of their own, then summed.
void repeat(B& b) {
  const Shape repeats = b.ints("repeats"), shape = b.shape("self");
  const size_t lead = repeats.size() - shape.size();
  Shape tiles, dims;
  for (size_t i = 0; i < repeats.size(); ++i) {
    const bool tiled = i < lead || repeats[i] != 1;
    if (tiled) {
      dims.push_back(static_cast<int64_t>(tiles.size()));
      tiles.push_back(repeats[i]);
    }
    if (i >= lead) tiles.push_back(shape[i - lead]);
  }
  Ref g = b.e.reshape(b.grad(), tiles);
  if (!dims.empty()) g = b("aten::sum.dim_IntList", g, dims, false);
  b.give("self", b.e.reshape(g, shape));
}

void repeat_interleave(B& b) {  // by one number
  const int64_t n = b.integer("repeats");
  Shape shape = b.shape("self");
  size_t dim = 0;
  if (b.has("dim"))
    dim = static_cast<size_t>(b.dim("dim"));
  else
    shape = {numel(shape)};
  shape.insert(shape.begin() + static_cast<int64_t>(dim) + 1, n);
  const Ref g = b.e.reshape(b.grad(), shape);
  const Ref summed = b("aten::sum.dim_IntList", g, Shape{static_cast<int64_t>(dim) + 1}, false);
  b.give("self", b.e.reshape(summed, b.shape("self")));
}

void cat(B& b) {
  const std::vector<Ref> parts = b.list("tensors");
  const auto rank = static_cast<int64_t>(b.e.shape(b.out()).size());
  int64_t dim = b.integer("dim");
  if (dim < 0) dim += rank;
  int64_t start = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Shape shape = b.e.shape(parts[i]);
    if (shape.size() == 1 && shape[0] == 0 && rank != 1) {  // a legacy empty part
      if (b.needs("tensors", i)) b.give("tensors", b.e.zeros(b.grad(), b.e.type(parts[i])), i);
      continue;
    }
    const int64_t size = shape.at(static_cast<size_t>(dim));
    if (b.needs("tensors", i))
      b.give("tensors", b("aten::slice.Tensor", b.grad(), dim, start, start + size), i);
    start += size;
  }
}

void stack(B& b) {
  const size_t n = b.list("tensors").size();
  const auto rank = static_cast<int64_t>(b.e.shape(b.out()).size());
  int64_t dim = b.integer("dim");
  if (dim < 0) dim += rank;
  for (size_t i = 0; i < n; ++i)
    if (b.needs("tensors", i))
      b.give("tensors", b("aten::select.int", b.grad(), dim, static_cast<int64_t>(i)), i);
}

// Parts of one tensor: their gradients in one piece; no copy where they lie side by side already.
void join(B& b) {
  std::vector<Ref> parts;
  for (size_t i = 0; i < b.out_count(); ++i) parts.push_back(b.grad_or_zeros(i));
  b.give("self", parts.size() == 1 ? parts[0] : b("nnscaler::join", parts, b.dim("dim")));
}
void unbind(B& b) {
  if (b.out_count() == 0) return b.give("self", {});
  std::vector<Ref> parts;
  for (size_t i = 0; i < b.out_count(); ++i) parts.push_back(b.grad_or_zeros(i));
  b.give("self", b("aten::stack", parts, b.dim("dim")));
}

// A slice's gradient padded with zeros.
void slice_range(B& b, int64_t dim, int64_t start, int64_t end, int64_t step) {
  const Shape shape = b.shape("self");
  const int64_t size = shape.at(static_cast<size_t>(dim));
  const auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  start = clip(start);
  end = std::max(start, clip(end));
  if (start == 0 && end == size && step == 1) return b.give("self", b.grad());
  b.give("self", b("aten::slice_backward", b.grad(), shape, dim, start, end, step));
}
void slice(B& b) {
  const int64_t dim = b.has("dim") ? b.dim("dim") : 0;
  slice_range(b, dim, b.integer("start", 0), b.integer("end", INT64_MAX), b.integer("step", 1));
}
void narrow(B& b) {
  int64_t start = b.integer("start");
  if (start < 0) start += b.shape("self").at(static_cast<size_t>(b.dim("dim")));
  slice_range(b, b.dim("dim"), start, start + b.integer("length"), 1);
}
void select(B& b) {
  b.give("self",
         b("aten::select_backward", b.grad(), b.shape("self"), b.dim("dim"), b.integer("index")));
}

void diagonal_back(B& b, int64_t offset, int64_t dim1, int64_t dim2) {
  b.give("self", b("aten::diagonal_backward", b.grad(), b.shape("self"), offset, dim1, dim2));
}

void roll(B& b) {
  Shape shifts = b.ints("shifts");
  for (int64_t& s : shifts) s = -s;
  b.give("self", b("aten::roll", b.grad(), shifts, b.ints("dims")));
}

// Constant padding: the inner part. Negative padding cuts, so its gradient pads with zeros.
bool pad(Forward& f) {
  if (f.text("mode", "constant") != "constant") return false;
  f.result(f.grad_call("aten::constant_pad_nd", f.in("self"), f.ints("pad"), f.real("value", 0)));
  return true;
}
void constant_pad(B& b) {
  Shape pad = b.ints("pad");
  for (int64_t& p : pad) p = -p;
  b.give("self", b("aten::constant_pad_nd", b.grad(), pad, 0.0));
}

void unfold(B& b) {
  b.give("self", b("aten::unfold_backward", b.grad(), b.shape("self"), b.dim("dimension"),
                   b.integer("size"), b.integer("step")));
}

void slice_scatter(B& b) {
  const int64_t dim = b.has("dim") ? b.dim("dim") : 0;
  const int64_t size = b.shape("self").at(static_cast<size_t>(dim));
  const auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t start = clip(b.integer("start", 0)), step = b.integer("step", 1);
  const int64_t end = std::max(start, clip(b.integer("end", INT64_MAX)));
  if (b.needs("src")) b.give("src", b("aten::slice.Tensor", b.grad(), dim, start, end, step));
  if (b.needs("self")) {
    const Ref zeros = b.e.zeros(b.grad(), b.type("src"));
    b.give("self", b("aten::slice_scatter", b.grad(), zeros, dim, start, end, step));
  }
}
void select_scatter(B& b) {
  const int64_t dim = b.dim("dim"), index = b.integer("index");
  if (b.needs("src")) b.give("src", b("aten::select.int", b.grad(), dim, index));
  if (b.needs("self"))
    b.give("self",
           b("aten::select_scatter", b.grad(), b.e.zeros(b.grad(), b.type("src")), dim, index));
}

}  // namespace

void add_shape_derivatives(Records& records) {
  records.derive("aten::reshape", gradient(reshape_back));
  records.derive("aten::view", gradient(reshape_back));
  records.derive("aten::_unsafe_view", gradient(reshape_back));
  records.derive("aten::flatten", gradient(reshape_back));
  records.derive("aten::unflatten", gradient(reshape_back));
  records.derive("aten::squeeze", gradient(reshape_back));
  records.derive("aten::unsqueeze", gradient(reshape_back));
  records.derive("aten::view_as", gradient(reshape_back));
  records.derive("aten::reshape_as", gradient(reshape_back));
  records.derive("aten::expand", gradient(sum_back));
  records.derive("aten::expand_as", gradient(sum_back));
  records.derive("aten::broadcast_to", gradient(sum_back));
  records.derive("aten::permute", gradient(permute));
  records.derive("aten::transpose", gradient(transpose));
  records.derive(
      "aten::swapaxes", gradient([](B& b) {
        b.give("self", b("aten::transpose.int", b.grad(), b.integer("axis0"), b.integer("axis1")));
      }));
  records.derive("aten::movedim", gradient(movedim));
  records.derive("aten::t", gradient(t));
  records.derive("aten::mT", gradient([](B& b) {
                   b.give("self", b("aten::transpose.int", b.grad(), -2, -1));
                 }));
  records.derive("aten::repeat", gradient(repeat));
  records.derive("aten::repeat_interleave", gradient(repeat_interleave));
  records.derive("aten::cat", gradient(cat));
  records.derive("aten::stack", gradient(stack));
  records.derive("aten::split", gradient(join));
  records.derive("aten::split_with_sizes", gradient(join));
  records.derive("aten::chunk", gradient(join));
  records.derive("aten::unbind", gradient(unbind));
  records.derive("aten::slice", gradient(slice));
  records.derive("aten::narrow", gradient(narrow));
  records.derive("aten::select", gradient(select));
  records.derive("aten::slice_scatter", gradient(slice_scatter));
  records.derive("aten::select_scatter", gradient(select_scatter));
  records.derive("aten::diag", gradient([](B& b) {
                   if (b.rank("self") == 1)
                     b.give("self", b("aten::diagonal", b.grad(), b.integer("diagonal", 0), 0, 1));
                   else
                     diagonal_back(b, b.integer("diagonal", 0), 0, 1);
                 }));
  records.derive("aten::diagonal", gradient([](B& b) {
                   diagonal_back(b, b.integer("offset", 0), b.integer("dim1", 0),
                                 b.integer("dim2", 1));
                 }));
  records.derive("aten::triu", gradient([](B& b) {
                   b.give("self", b("aten::triu", b.grad(), b.integer("diagonal", 0)));
                 }));
  records.derive("aten::tril", gradient([](B& b) {
                   b.give("self", b("aten::tril", b.grad(), b.integer("diagonal", 0)));
                 }));
  records.derive("aten::flip",
                 gradient([](B& b) { b.give("self", b("aten::flip", b.grad(), b.ints("dims"))); }));
  records.derive("aten::roll", gradient(roll));
  records.derive("aten::pad", expands(pad));
  records.derive("aten::constant_pad_nd", gradient(constant_pad));
  records.derive("aten::unfold", gradient(unfold));
}

}  // namespace nns::operators
