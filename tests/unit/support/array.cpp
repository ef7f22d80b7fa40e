// Strided arrays of doubles.
#include "support/array.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace nns::test {
namespace {

Shape row_major(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

}  // namespace

Array Array::filled(Shape shape, double value, DType dtype) {
  Array a;
  a.memory = std::make_shared<Memory>();
  a.memory->data.assign(static_cast<size_t>(numel(shape)), value);
  a.strides = row_major(shape);
  a.shape = std::move(shape);
  a.dtype = dtype;
  return a;
}

Array Array::of(Shape shape, std::vector<double> elements, DType dtype) {
  Array a = filled(std::move(shape), 0, dtype);
  if (a.memory->data.size() != elements.size())
    throw std::runtime_error("elements do not fill " + to_string(a.shape));
  a.memory->data = std::move(elements);
  return a;
}

double& Array::at(const Index& index) const {
  int64_t place = offset;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (index[d] < 0 || index[d] >= shape[d])
      throw std::runtime_error("index " + to_string(index) + " of " + to_string(shape));
    place += index[d] * strides[d];
  }
  return memory->data.at(static_cast<size_t>(place));
}

std::vector<double> Array::elements() const {
  std::vector<double> out;
  each(shape, [&](const Index& i) { out.push_back(at(i)); });
  return out;
}

bool Array::contiguous() const {
  const Shape dense = row_major(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1 && strides[d] != dense[d]) return false;
  return true;
}

bool Array::overlaps() const {
  if (numel(shape) == 0) return false;  // strides of nothing are 0
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1 && strides[d] == 0) return true;
  return false;
}

void each(const Shape& shape, const std::function<void(const Index&)>& f) {
  if (numel(shape) == 0) return;
  Index index(shape.size(), 0);
  while (true) {
    f(index);
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

Array expand(const Array& a, const Shape& shape) {
  Array out = a;
  const size_t lead = shape.size() - a.rank();
  out.shape = shape;
  out.strides.assign(shape.size(), 0);
  for (size_t d = 0; d < a.rank(); ++d) {
    int64_t& size = out.shape[d + lead];
    if (size == -1) size = a.shape[d];
    if (a.shape[d] == size)
      out.strides[d + lead] = a.strides[d];
    else if (a.shape[d] != 1)
      throw std::runtime_error(to_string(a.shape) + " expanded to " + to_string(shape));
  }
  return out;
}

Array permute(const Array& a, const Shape& order) {
  Array out = a;
  for (size_t d = 0; d < order.size(); ++d) {
    const auto from = static_cast<size_t>(order[d] < 0 ? order[d] + int64_t(a.rank()) : order[d]);
    out.shape[d] = a.shape.at(from);
    out.strides[d] = a.strides.at(from);
  }
  return out;
}

Array slice(const Array& a, size_t dim, int64_t start, int64_t stop, int64_t step) {
  Array out = a;
  if (start < 0 || stop > a.shape.at(dim)) throw std::runtime_error("slice out of range");
  out.offset += start * a.strides[dim];
  out.shape[dim] = std::max<int64_t>(0, (stop - start + step - 1) / step);
  out.strides[dim] *= step;
  return out;
}

Array select(const Array& a, size_t dim, int64_t index) {
  Array out = slice(a, dim, index, index + 1);
  out.shape.erase(out.shape.begin() + static_cast<std::ptrdiff_t>(dim));
  out.strides.erase(out.strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return out;
}

Array reshape(const Array& a, Shape shape) {
  int64_t known = 1;
  for (int64_t size : shape) known *= size < 0 ? 1 : size;
  for (int64_t& size : shape)
    if (size < 0) size = a.count() / known;
  if (numel(shape) != a.count())
    throw std::runtime_error(to_string(a.shape) + " reshaped to " + to_string(shape));
  // Only a view where dimensions of length 1 come and go, or memory is dense.
  const auto without_ones = [](const Array& x) {
    Array out = x;
    out.shape.clear();
    out.strides.clear();
    for (size_t d = 0; d < x.rank(); ++d)
      if (x.shape[d] != 1) {
        out.shape.push_back(x.shape[d]);
        out.strides.push_back(x.strides[d]);
      }
    return out;
  };
  Array out = a;
  const Array bare = without_ones(a);
  Array target;
  target.shape = shape;
  target.strides = row_major(shape);
  if (without_ones(target).shape == bare.shape) {
    size_t next = 0;
    out.shape = shape;
    out.strides.clear();
    for (int64_t size : shape) out.strides.push_back(size == 1 ? 1 : bare.strides[next++]);
    return out;
  }
  if (!a.contiguous()) out = copy(a);
  out.strides = target.strides;
  out.shape = std::move(shape);
  return out;
}

Array unsqueeze(const Array& a, size_t dim) {
  Array out = a;
  out.shape.insert(out.shape.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  out.strides.insert(out.strides.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  return out;
}

Array copy(const Array& a) {
  return Array::of(a.shape, a.elements(), a.dtype);
}

void assign(const Array& a, const Array& b) {
  if (a.overlaps()) throw std::runtime_error("write into an array whose elements overlap");
  const Array from = copy(expand(b, a.shape));
  each(a.shape, [&](const Index& i) { a.at(i) = from.at(i); });
}

void add_into(const Array& a, const Array& b) {
  assign(a, zip(a, b, std::plus<>()));
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (const Shape* s : {&a, &b})
    for (size_t d = 0; d < s->size(); ++d) {
      int64_t& size = out[out.size() - s->size() + d];
      if (size == 1)
        size = (*s)[d];
      else if ((*s)[d] != 1 && (*s)[d] != size)
        throw std::runtime_error(to_string(a) + " does not broadcast with " + to_string(b));
    }
  return out;
}

Array map(const Array& a, const std::function<double(double)>& f) {
  Array out = copy(a);
  for (double& x : out.memory->data) x = f(x);
  return out;
}

Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f) {
  Array out = Array::filled(broadcast_shape(a.shape, b.shape), 0, a.dtype);
  const Array x = expand(a, out.shape), y = expand(b, out.shape);
  each(out.shape, [&](const Index& i) { out.at(i) = f(x.at(i), y.at(i)); });
  return out;
}

Array cat(const std::vector<Array>& parts, size_t dim) {
  Shape shape = parts.at(0).shape;
  shape.at(dim) = 0;
  for (const Array& p : parts) shape[dim] += p.shape.at(dim);
  Array out = Array::filled(shape, 0, parts[0].dtype);
  int64_t start = 0;
  for (const Array& p : parts) {
    assign(slice(out, dim, start, start + p.shape[dim]), p);
    start += p.shape[dim];
  }
  return out;
}

Array fold(const Array& a, const Shape& dims, double start,
           const std::function<double(double, double)>& f) {
  Shape shape = a.shape;
  for (int64_t d : dims) shape.at(static_cast<size_t>(d)) = 1;
  Array out = Array::filled(shape, start, a.dtype);
  each(a.shape, [&](Index i) {
    const double x = a.at(i);
    for (int64_t d : dims) i[static_cast<size_t>(d)] = 0;
    double& sum = out.at(i);
    sum = f(sum, x);
  });
  return out;
}

Array drop(const Array& a, const Shape& dims) {
  Shape shape;
  for (size_t d = 0; d < a.rank(); ++d)
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end())
      shape.push_back(a.shape[d]);
  return reshape(a, shape);
}

double largest_difference(const Array& a, const Array& b) {
  if (a.shape != b.shape)
    throw std::runtime_error(to_string(a.shape) + " against " + to_string(b.shape));
  double most = 0;
  each(a.shape, [&](const Index& i) {
    const double d = std::abs(a.at(i) - b.at(i));
    most = std::isnan(d) ? HUGE_VAL : std::max(most, d);
  });
  return most;
}

double largest(const Array& a) {
  double most = 0;
  each(a.shape, [&](const Index& i) { most = std::max(most, std::abs(a.at(i))); });
  return most;
}

}  // namespace nns::test
