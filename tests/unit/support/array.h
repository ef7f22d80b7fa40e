// Plain arrays for the interpreter of the tests: doubles behind strides, so that views look at the
// memory of what they are made of, as in LibTorch.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/types.h"

namespace nns::test {

struct Memory {
  std::vector<double> data;
  int64_t bytes = 0;  // of its elements under their dtype; 0 until it is known
};

using Index = std::vector<int64_t>;

struct Array {
  std::shared_ptr<Memory> memory;
  Shape shape, strides;
  int64_t offset = 0;
  DType dtype = DType::f64;

  // New memory, row-major.
  static Array filled(Shape shape, double value = 0, DType dtype = DType::f64);
  static Array of(Shape shape, std::vector<double> elements, DType dtype = DType::f64);
  static Array number(double value) { return of({}, {value}); }

  size_t rank() const { return shape.size(); }
  int64_t count() const { return numel(shape); }
  double& at(const Index& index) const;
  double item() const { return at(Index(shape.size(), 0)); }
  std::vector<double> elements() const;  // row-major
  bool contiguous() const;
  // Whether two indices name one element, as after `expand`.
  bool overlaps() const;
};

// Calls f(index) for every index of a shape, row-major.
void each(const Shape& shape, const std::function<void(const Index&)>& f);

// --- views -------------------------------------------------------------------------------------
Array expand(const Array& a, const Shape& shape);
Array permute(const Array& a, const Shape& order);
Array slice(const Array& a, size_t dim, int64_t start, int64_t stop, int64_t step = 1);
Array select(const Array& a, size_t dim, int64_t index);
// A view where strides allow it, else a copy.
Array reshape(const Array& a, Shape shape);
Array unsqueeze(const Array& a, size_t dim);

// --- copies ------------------------------------------------------------------------------------
Array copy(const Array& a);
// Writes b, broadcast, into a; refuses an array in which elements overlap.
void assign(const Array& a, const Array& b);
void add_into(const Array& a, const Array& b);
Shape broadcast_shape(const Shape& a, const Shape& b);
Array map(const Array& a, const std::function<double(double)>& f);
// Element by element, broadcast.
Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f);
Array cat(const std::vector<Array>& parts, size_t dim);
// Joins over the dimensions `dims`, kept as 1: f(so far, element).
Array fold(const Array& a, const Shape& dims, double start,
           const std::function<double(double, double)>& f);
// Without the dimensions of length 1 in `dims`.
Array drop(const Array& a, const Shape& dims);
double largest_difference(const Array& a, const Array& b);
double largest(const Array& a);

}  // namespace nns::test
