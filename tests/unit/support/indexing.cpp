// Operators that address elements by arrays of indices.
#include "support/operators.h"

namespace nns::test {
namespace {

using Results = std::vector<Array>;

int64_t whole(double x) {
  return static_cast<int64_t>(x);
}

// Calls f(place in the indexed array, place in the result) as PyTorch reads a list of indices:
// they broadcast together, and stand where they are if they stand side by side, else in front.
// Returns the shape of the result.
Shape each_indexed(const Array& x, const std::vector<Array>& indices,
                   const std::function<void(const Index&, const Index&)>& f) {
  std::vector<size_t> dims;
  Shape together;
  for (size_t d = 0; d < indices.size(); ++d)
    if (indices[d].memory) {
      dims.push_back(d);
      together = broadcast_shape(together, indices[d].shape);
    }
  const bool beside = dims.back() - dims.front() + 1 == dims.size();
  const size_t front = beside ? dims.front() : 0;
  Shape rest;
  for (size_t d = 0; d < x.rank(); ++d)
    if (d >= indices.size() || !indices[d].memory) rest.push_back(x.shape[d]);
  Shape shape(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(front));
  shape.insert(shape.end(), together.begin(), together.end());
  shape.insert(shape.end(), rest.begin() + static_cast<std::ptrdiff_t>(front), rest.end());
  each(shape, [&](const Index& i) {
    const Index at(i.begin() + static_cast<std::ptrdiff_t>(front),
                   i.begin() + static_cast<std::ptrdiff_t>(front + together.size()));
    Index from;
    size_t next = 0;
    for (size_t d = 0; d < x.rank(); ++d) {
      if (d < indices.size() && indices[d].memory) {
        from.push_back(whole(expand(indices[d], together).at(at)));
      } else {
        from.push_back(i[next < front ? next : next + together.size()]);
        ++next;
      }
    }
    f(from, i);
  });
  return shape;
}

Results index(const Call& c) {
  const Array x = c.in("self");
  const auto indices = c.holes("indices");
  std::vector<double> elements;
  const Shape shape = each_indexed(
      x, indices, [&](const Index& from, const Index&) { elements.push_back(x.at(from)); });
  return {Array::of(shape, elements)};
}
Results index_put(const Call& c) {
  const Array out = copy(c.in("self"));
  const auto indices = c.holes("indices");
  const Shape shape = each_indexed(out, indices, [](const Index&, const Index&) {});
  const Array values = expand(c.in("values"), shape);
  const bool add = c.boolean("accumulate");
  each_indexed(out, indices, [&](const Index& to, const Index& i) {
    out.at(to) = values.at(i) + (add ? out.at(to) : 0);
  });
  return {out};
}

Results index_select(const Call& c) {
  const Array x = c.in("self");
  const size_t d = c.dim("dim", x.rank());
  const Array at = c.in("index");
  std::vector<Array> rows;
  for (int64_t k = 0; k < at.count(); ++k) {
    const int64_t row = whole(reshape(at, {at.count()}).at({k}));
    rows.push_back(slice(x, d, row, row + 1));
  }
  return {cat(rows, d)};
}
Results index_add(const Call& c) {
  const Array out = copy(c.in("self")), source = c.in("source");
  const size_t d = c.dim("dim", out.rank());
  const Array at = c.in("index");
  const double alpha = c.real("alpha", 1);
  each(source.shape, [&](const Index& i) {
    Index to = i;
    to[d] = whole(at.at({i[d]}));
    out.at(to) += alpha * source.at(i);
  });
  return {out};
}
Results index_fill(const Call& c) {
  const Array out = copy(c.in("self"));
  const size_t d = c.dim("dim", out.rank());
  const Array at = c.in("index");
  for (int64_t k = 0; k < at.count(); ++k) assign(select(out, d, whole(at.at({k}))), c.in("value"));
  return {out};
}

// gather and scatter: the index has as many dimensions as the array.
Results gather(const Call& c) {
  const Array x = c.in("self"), at = c.in("index"), out = Array::filled(at.shape);
  const size_t d = c.dim("dim", x.rank());
  each(at.shape, [&](const Index& i) {
    Index from = i;
    from[d] = whole(at.at(i));
    out.at(i) = x.at(from);
  });
  return {out};
}
Results scatter(const Call& c, bool add) {
  const Array out = copy(c.in("self")), at = c.in("index");
  const size_t d = c.dim("dim", out.rank());
  const Array source = c.has("src") ? c.in("src") : expand(c.in("value"), at.shape);
  each(at.shape, [&](const Index& i) {
    Index to = i;
    to[d] = whole(at.at(i));
    out.at(to) = source.at(i) + (add ? out.at(to) : 0);
  });
  return {out};
}

}  // namespace

void add_indexing(Operators& all) {
  all["aten::index"] = index;
  all["aten::index_put"] = index_put;
  all["aten::index_select"] = index_select;
  all["aten::index_add"] = index_add;
  all["aten::index_fill"] = index_fill;
  all["aten::gather"] = gather;
  all["aten::scatter"] = [](const Call& c) { return scatter(c, false); };
  all["aten::scatter_add"] = [](const Call& c) { return scatter(c, true); };
}

}  // namespace nns::test
