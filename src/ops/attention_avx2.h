// Attention of one head on float32 matrices: what nnscaler::attention and its derivative run for
// every batch and head.
#pragma once

#include <cstdint>

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

#if defined(__x86_64__)
// output = softmax(scale q kᵀ) v; logsumexp has one number a query.
void attend_head(const HeadShape& shape, Rows<const float> q, Rows<const float> k,
                 Rows<const float> v, Rows<float> output, float* logsumexp);

struct HeadGradients {
  Rows<float> q, k, v;
};
// Writes the gradients of q, k and v, given that of the output.
void attend_head_backward(const HeadShape& shape, Rows<const float> gradient, Rows<const float> q,
                          Rows<const float> k, Rows<const float> v, Rows<const float> output,
                          const float* logsumexp, const HeadGradients& gradients);
#endif

}  // namespace nns::ops
