// Operators that move elements without changing them. The derivative of a view is found by looking
// through the same view at the numbers of its elements.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

Array self(const Call& c) {
  return c.in("self");
}

Results transposed(const Array& x, size_t a, size_t b) {
  Shape order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order.at(a), order.at(b));
  return {permute(x, order)};
}

Results movedim(const Call& c) {
  const Array x = self(c);
  Shape from = c.ints("source"), to = c.ints("destination");
  for (Shape* list : {&from, &to})
    for (int64_t& d : *list)
      if (d < 0) d += static_cast<int64_t>(x.rank());
  Shape order(x.rank(), -1), rest;
  for (size_t i = 0; i < from.size(); ++i) order.at(static_cast<size_t>(to[i])) = from[i];
  for (int64_t d = 0; d < static_cast<int64_t>(x.rank()); ++d)
    if (std::find(from.begin(), from.end(), d) == from.end()) rest.push_back(d);
  size_t next = 0;
  for (int64_t& d : order)
    if (d < 0) d = rest[next++];
  return {permute(x, order)};
}

Array diagonal_of(const Array& x, int64_t offset, size_t a, size_t b) {
  Array out = x;
  const int64_t down = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
  const int64_t n = std::max<int64_t>(0, std::min(x.shape[a] - down, x.shape[b] - right));
  out.offset += down * x.strides[a] + right * x.strides[b];
  out.shape.clear();
  out.strides.clear();
  for (size_t d = 0; d < x.rank(); ++d)
    if (d != a && d != b) {
      out.shape.push_back(x.shape[d]);
      out.strides.push_back(x.strides[d]);
    }
  out.shape.push_back(n);
  out.strides.push_back(x.strides[a] + x.strides[b]);
  return out;
}

Results unfold(const Array& x, size_t d, int64_t size, int64_t step) {
  Array out = x;
  out.shape[d] = (x.shape[d] - size) / step + 1;
  out.strides[d] = x.strides[d] * step;
  out.shape.push_back(size);
  out.strides.push_back(x.strides[d]);
  return {out};
}

int64_t wrap(int64_t i, int64_t size) {
  return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
}
Array sliced(const Call& c, const Array& x) {
  const size_t d = c.dim("dim", x.rank());
  const int64_t start = wrap(c.integer("start"), x.shape[d]);
  // INT64_MAX, the end that schemas mean by nil, is not a double.
  const bool to_end = !c.has("end") || c.real("end") > 1e15;
  const int64_t stop = to_end ? x.shape[d] : wrap(c.integer("end"), x.shape[d]);
  return slice(x, d, start, std::max(start, stop), c.integer("step", 1));
}

// Elements of the gradient go to where the view has them from.
template <class View>
Results scattered(const Array& gradient, const Shape& sizes, View view) {
  const Array out = Array::filled(sizes);
  const Array seen = view(out);
  if (seen.shape != gradient.shape)
    throw std::runtime_error("gradient " + to_string(gradient.shape) + " of a view of shape " +
                             to_string(seen.shape));
  each(gradient.shape, [&](const Index& i) { seen.at(i) += gradient.at(i); });
  return {out};
}

Results parts(const Array& x, size_t d, const Shape& sizes) {
  Results out;
  int64_t start = 0;
  for (int64_t size : sizes) {
    out.push_back(slice(x, d, start, start + size));
    start += size;
  }
  return out;
}

Results repeat(const Call& c) {
  const Shape times = c.ints("repeats");
  Array x = self(c);
  while (x.rank() < times.size()) x = unsqueeze(x, 0);
  for (size_t d = 0; d < times.size(); ++d)
    x = cat(std::vector<Array>(static_cast<size_t>(times[d]), x), d);
  return {x};
}
Results repeat_interleave(const Call& c) {
  Array x = self(c);
  if (!c.has("dim")) x = reshape(x, {x.count()});
  const size_t d = c.dim("dim", x.rank());
  std::vector<Array> all;
  for (int64_t i = 0; i < x.shape[d]; ++i)
    for (int64_t k = 0; k < c.integer("repeats"); ++k) all.push_back(slice(x, d, i, i + 1));
  return {cat(all, d)};
}

Results triangle(const Call& c, bool upper) {
  const Array x = copy(self(c));
  const int64_t diagonal = c.integer("diagonal");
  each(x.shape, [&](const Index& i) {
    const int64_t over = i[x.rank() - 1] - i[x.rank() - 2] - diagonal;
    if (upper ? over < 0 : over > 0) x.at(i) = 0;
  });
  return {x};
}

Results pad(const Call& c) {
  Array x = self(c);
  const Shape pads = c.ints("pad");
  const double value = c.real("value");
  for (size_t k = 0; k < pads.size() / 2; ++k) {
    const size_t d = x.rank() - 1 - k;
    const int64_t before = pads[2 * k], after = pads[2 * k + 1];
    x = slice(x, d, std::max<int64_t>(-before, 0), x.shape[d] - std::max<int64_t>(-after, 0));
    const auto filled = [&](int64_t n) {
      Shape shape = x.shape;
      shape[d] = std::max<int64_t>(n, 0);
      return Array::filled(shape, value);
    };
    x = cat({filled(before), x, filled(after)}, d);
  }
  return {copy(x)};
}

Results roll(const Call& c) {
  const Array x = self(c);
  const Shape shifts = c.ints("shifts");
  Shape dims = c.ints("dims");
  Array from = dims.empty() ? reshape(x, {x.count()}) : x;
  if (dims.empty()) dims = {0};
  for (size_t k = 0; k < dims.size(); ++k) {
    const auto d = static_cast<size_t>(dims[k] < 0 ? dims[k] + int64_t(from.rank()) : dims[k]);
    const int64_t n = from.shape[d], by = ((shifts[k] % n) + n) % n;
    from = cat({slice(from, d, n - by, n), slice(from, d, 0, n - by)}, d);
  }
  return {reshape(from, x.shape)};
}

Results unflatten(const Call& c) {
  const Array x = self(c);
  const size_t d = c.dim("dim", x.rank());
  Shape shape = x.shape;
  const Shape sizes = c.ints("sizes");
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d));
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(d), sizes.begin(), sizes.end());
  return {reshape(x, shape)};
}
Results flatten(const Call& c) {
  const Array x = self(c);
  const size_t a = c.dim("start_dim", x.rank()), b = c.dim("end_dim", x.rank(), -1);
  Shape shape(x.shape.begin(), x.shape.begin() + static_cast<std::ptrdiff_t>(a));
  shape.push_back(1);
  for (size_t d = a; d <= b; ++d) shape.back() *= x.shape[d];
  shape.insert(shape.end(), x.shape.begin() + static_cast<std::ptrdiff_t>(b) + 1, x.shape.end());
  return {reshape(x, shape)};
}
Results squeeze(const Call& c) {
  const Array x = self(c);
  Shape gone;
  for (int64_t d : c.dims("dim", x.rank()))
    if (x.shape[static_cast<size_t>(d)] == 1) gone.push_back(d);
  return {drop(x, gone)};
}

void add_views(Operators& all) {
  all["aten::reshape"] = [](const Call& c) { return Results{reshape(self(c), c.ints("shape"))}; };
  for (const char* name : {"aten::view", "aten::_unsafe_view"})
    all[name] = [](const Call& c) { return Results{reshape(self(c), c.ints("size"))}; };
  for (const char* name : {"aten::view_as", "aten::reshape_as"})
    all[name] = [](const Call& c) { return Results{reshape(self(c), c.in("other").shape)}; };
  all["aten::flatten"] = flatten;
  all["aten::unflatten"] = unflatten;
  all["aten::squeeze"] = squeeze;
  all["aten::unsqueeze"] = [](const Call& c) {
    return Results{unsqueeze(self(c), c.dim("dim", self(c).rank() + 1))};
  };
  for (const char* name : {"aten::expand", "aten::broadcast_to"})
    all[name] = [](const Call& c) { return Results{expand(self(c), c.ints("size"))}; };
  all["aten::expand_as"] = [](const Call& c) {
    return Results{expand(self(c), c.in("other").shape)};
  };
  all["aten::permute"] = [](const Call& c) { return Results{permute(self(c), c.ints("dims"))}; };
  all["aten::transpose"] = [](const Call& c) {
    const Array x = self(c);
    return transposed(x, c.dim("dim0", x.rank()), c.dim("dim1", x.rank()));
  };
  all["aten::swapaxes"] = [](const Call& c) {
    const Array x = self(c);
    return transposed(x, c.dim("axis0", x.rank()), c.dim("axis1", x.rank()));
  };
  all["aten::t"] = [](const Call& c) {
    return self(c).rank() < 2 ? Results{self(c)} : transposed(self(c), 0, 1);
  };
  all["aten::mT"] = [](const Call& c) {
    return transposed(self(c), self(c).rank() - 2, self(c).rank() - 1);
  };
  all["aten::movedim"] = movedim;
  all["aten::slice"] = [](const Call& c) { return Results{sliced(c, self(c))}; };
  all["aten::narrow"] = [](const Call& c) {
    const Array x = self(c);
    const size_t d = c.dim("dim", x.rank());
    const int64_t start = wrap(c.integer("start"), x.shape[d]);
    return Results{slice(x, d, start, start + c.integer("length"))};
  };
  all["aten::select"] = [](const Call& c) {
    const Array x = self(c);
    const size_t d = c.dim("dim", x.rank());
    return Results{select(x, d, wrap(c.integer("index"), x.shape[d]))};
  };
  all["aten::diagonal"] = [](const Call& c) {
    const Array x = self(c);
    return Results{diagonal_of(x, c.integer("offset"), c.dim("dim1", x.rank(), 0),
                               c.dim("dim2", x.rank(), 1))};
  };
  all["aten::unfold"] = [](const Call& c) {
    const Array x = self(c);
    return unfold(x, c.dim("dimension", x.rank()), c.integer("size"), c.integer("step"));
  };
}

void add_cuts(Operators& all) {
  all["aten::split"] = [](const Call& c) {
    const Array x = self(c);
    const size_t d = c.dim("dim", x.rank());
    Shape sizes;
    const int64_t size = c.integer("split_size");
    for (int64_t at = 0; at < x.shape[d]; at += size)
      sizes.push_back(std::min(size, x.shape[d] - at));
    return parts(x, d, sizes);
  };
  all["aten::chunk"] = [](const Call& c) {
    const Array x = self(c);
    const size_t d = c.dim("dim", x.rank());
    Shape sizes;
    const int64_t n = c.integer("chunks"), size = (x.shape[d] + n - 1) / n;
    for (int64_t at = 0; at < x.shape[d]; at += size)
      sizes.push_back(std::min(size, x.shape[d] - at));
    return parts(x, d, sizes);
  };
  all["aten::split_with_sizes"] = [](const Call& c) {
    const Array x = self(c);
    return parts(x, c.dim("dim", x.rank()), c.ints("split_sizes"));
  };
  all["aten::unbind"] = [](const Call& c) {
    const Array x = self(c);
    const size_t d = c.dim("dim", x.rank());
    Results out;
    for (int64_t i = 0; i < x.shape[d]; ++i) out.push_back(select(x, d, i));
    return out;
  };
  all["aten::cat"] = [](const Call& c) {
    const auto all = c.list("tensors");
    return Results{cat(all, c.dim("dim", all[0].rank()))};
  };
  // Copies unless the parts lie side by side in one memory; as a view its memory would be theirs.
  all["nnscaler::join"] = [](const Call& c) {
    const auto all = c.list("tensors");
    const size_t d = c.dim("dim", all[0].rank());
    int64_t next = all[0].offset, whole = 0;
    bool beside = true;
    for (const Array& a : all) {
      beside =
          beside && a.memory == all[0].memory && a.strides == all[0].strides && a.offset == next;
      next = a.offset + a.strides[d] * a.shape[d];
      whole += a.shape[d];
    }
    if (!beside) return Results{cat(all, d)};
    Array out = all[0];
    out.shape[d] = whole;
    return Results{out};
  };
  all["aten::stack"] = [](const Call& c) {
    auto all = c.list("tensors");
    const size_t d = c.dim("dim", all[0].rank() + 1);
    for (Array& a : all) a = unsqueeze(a, d);
    return Results{cat(all, d)};
  };
}

void add_view_gradients(Operators& all) {
  const auto sizes = [](const Call& c) { return c.ints("input_sizes"); };
  all["aten::slice_backward"] = [=](const Call& c) {
    return scattered(c.in("grad_output"), sizes(c), [&](const Array& x) { return sliced(c, x); });
  };
  all["aten::select_backward"] = [=](const Call& c) {
    return scattered(c.in("grad_output"), sizes(c), [&](const Array& x) {
      const size_t d = c.dim("dim", x.rank());
      return select(x, d, wrap(c.integer("index"), x.shape[d]));
    });
  };
  all["aten::diagonal_backward"] = [=](const Call& c) {
    return scattered(c.in("grad_output"), sizes(c), [&](const Array& x) {
      return diagonal_of(x, c.integer("offset"), c.dim("dim1", x.rank()), c.dim("dim2", x.rank()));
    });
  };
  all["aten::unfold_backward"] = [=](const Call& c) {
    return scattered(c.in("grad_in"), sizes(c), [&](const Array& x) {
      return unfold(x, c.dim("dim", x.rank()), c.integer("size"), c.integer("step"))[0];
    });
  };
  all["aten::slice_scatter"] = [](const Call& c) {
    const Array x = copy(self(c));
    assign(sliced(c, x), c.in("src"));
    return Results{x};
  };
  all["aten::select_scatter"] = [](const Call& c) {
    const Array x = copy(self(c));
    const size_t d = c.dim("dim", x.rank());
    assign(select(x, d, wrap(c.integer("index"), x.shape[d])), c.in("src"));
    return Results{x};
  };
}

}  // namespace

void add_shapes(Operators& all) {
  add_views(all);
  add_cuts(all);
  add_view_gradients(all);
  all["aten::repeat"] = repeat;
  all["aten::repeat_interleave"] = repeat_interleave;
  all["aten::diag"] = [](const Call& c) {
    const Array x = self(c);
    const int64_t k = c.integer("diagonal");
    if (x.rank() == 2) return Results{copy(diagonal_of(x, k, 0, 1))};
    const int64_t n = x.shape[0] + std::abs(k);
    const Array out = Array::filled({n, n});
    assign(diagonal_of(out, k, 0, 1), x);
    return Results{out};
  };
  all["aten::triu"] = [](const Call& c) { return triangle(c, true); };
  all["aten::tril"] = [](const Call& c) { return triangle(c, false); };
  all["aten::flip"] = [](const Call& c) {
    const Array x = self(c), out = copy(x);
    const Shape dims = c.dims("dims", x.rank());
    each(x.shape, [&](const Index& i) {
      Index to = i;
      for (int64_t d : dims) {
        auto& at = to[static_cast<size_t>(d)];
        at = x.shape[static_cast<size_t>(d)] - 1 - at;
      }
      out.at(to) = x.at(i);
    });
    return Results{out};
  };
  all["aten::roll"] = roll;
  all["aten::pad"] = all["aten::constant_pad_nd"] = pad;
}

}  // namespace nns::test
