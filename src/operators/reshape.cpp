// Annotation of a reshape: which axes of input and output are products of common factors.
#include "operators/family.h"

namespace nns::operators {
namespace {

// Sizes of the common refinement of two factorisations of one number, outermost first; nothing when
// their boundaries do not divide one another ([6, 4] and [4, 6]).
std::optional<Shape> refine(const Shape& a, const Shape& b) {
  Shape factors;
  size_t i = 0, j = 0;
  int64_t left_a = a.at(0), left_b = b.at(0);
  while (true) {
    const int64_t factor = std::min(left_a, left_b);
    if (left_a % factor != 0 || left_b % factor != 0) return {};
    factors.push_back(factor);
    left_a /= factor;
    left_b /= factor;
    if (left_a == 1 && ++i < a.size()) left_a = a[i];
    if (left_b == 1 && ++j < b.size()) left_b = b[j];
    if (i >= a.size() || j >= b.size()) return factors;
  }
}

// Names each axis of `sizes` by the factors that it is the product of.
DimTexts name_axes(const Shape& sizes, const Shape& factors, size_t first_letter) {
  DimTexts out;
  size_t k = 0;
  for (const int64_t size : sizes) {
    std::string text;
    size_t count = 0;
    for (int64_t left = size; left > 1; left /= factors[k], ++k, ++count)
      text += (count == 0 ? "" : " ") + letter(first_letter + k);
    out.push_back(count == 1 ? text : "(" + text + ")");
  }
  return out;
}

DimTexts literals(const Shape& sizes) {
  DimTexts out;
  for (const int64_t size : sizes) out.push_back(std::to_string(size));
  return out;
}

}  // namespace

// Walks both shapes in blocks of equal element count. Sizes of 1 stand for themselves; a block
// whose factors cannot be matched is written in numbers, which are never split.
Texts reshape_text(const Shape& from, const Shape& to) {
  if (numel(from) == 0) return {annotation({literals(from)}, {literals(to)})};
  DimTexts in, out;
  size_t i = 0, j = 0, next = 0;
  const auto skip_ones = [](const Shape& shape, size_t& at, DimTexts& texts) {
    for (; at < shape.size() && shape[at] == 1; ++at) texts.push_back("1");
  };
  while (true) {
    skip_ones(from, i, in);
    skip_ones(to, j, out);
    if (i >= from.size() || j >= to.size()) break;
    Shape a = {from[i++]}, b = {to[j++]};
    int64_t product_a = a[0], product_b = b[0];
    while (product_a != product_b) {
      const bool grow_a = product_a < product_b;
      const int64_t size = grow_a ? from.at(i++) : to.at(j++);
      (grow_a ? product_a : product_b) *= size;
      (grow_a ? a : b).push_back(size);
    }
    // A size of 1 inside a block is written out by itself.
    const auto strip = [](const Shape& s) {
      Shape kept;
      for (const int64_t size : s)
        if (size != 1) kept.push_back(size);
      return kept;
    };
    const auto factors = refine(strip(a), strip(b));
    const auto emit = [&](const Shape& sizes, DimTexts& texts) {
      DimTexts named = factors ? name_axes(sizes, *factors, next) : literals(sizes);
      for (size_t k = 0; k < sizes.size(); ++k)
        texts.push_back(sizes[k] == 1 ? "1" : std::move(named[k]));
    };
    emit(a, in);
    emit(b, out);
    if (factors) next += factors->size();
  }
  return {annotation({in}, {out})};
}

}  // namespace nns::operators
