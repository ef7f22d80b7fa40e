// Attention of one head on float32 matrices: what nnscaler::attention and its derivative run for
// every batch and head.
#pragma once

#include <cstdint>

#include "ops/philox.h"

namespace nns::ops {

// A matrix [length, width] whose rows lie `row` floats apart.
template <class T>
struct Rows {
  T* data;
  int64_t row;
};

struct HeadShape {
  int64_t queries, keys, width;
  float scale;
  bool causal;  // query i sees keys 0 to i
};

// What dropout keeps of a head's weights: the draw of (query i, key j) is that of element
// first + i * row + j; below `limit` the weight is dropped, else multiplied by `factor`.
struct HeadDrops {
  Stream stream;
  uint64_t first, row;
  uint32_t limit;
  float factor;
};

// output = dropout(softmax(scale q kᵀ)) v; logsumexp has one number a query. `drops` may be null.
void attend_head(const HeadShape& shape, Rows<const float> q, Rows<const float> k,
                 Rows<const float> v, Rows<float> output, float* logsumexp,
                 const HeadDrops* drops = nullptr);

struct HeadGradients {
  Rows<float> q, k, v;
};
// Writes the gradients of q, k and v, given that of the output.
void attend_head_backward(const HeadShape& shape, Rows<const float> gradient, Rows<const float> q,
                          Rows<const float> k, Rows<const float> v, Rows<const float> output,
                          const float* logsumexp, const HeadGradients& gradients,
                          const HeadDrops* drops = nullptr);

}  // namespace nns::ops
