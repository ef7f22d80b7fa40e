// Kernels on float32 in memory, compiled for each instruction set (isa.h): what our operators run,
// one thread's share at a time. No LibTorch.
#pragma once

#include <cstdint>

namespace nns::ops {

// --- normalisation of rows [rows, width] ---------------------------------------------------------

// y = (x - mean) · rstd · weight + bias with rstd = 1 / √(mean of (x - mean)² + eps); `mean` null:
// that of squares, and mean 0. With `addend`, x + addend takes the place of x and is written to
// `sum`. `weight` and `bias` may be null.
struct NormRows {
  int64_t rows, width;
  float eps;
  const float *x, *addend, *weight, *bias;
  float *sum, *y, *mean, *rstd;
};
void normalize_rows(const NormRows& n);

// The gradient of x, plus `addend` if there is one, written to `dx` unless that is null; those of
// weight and bias are added to `dweight` and `dbias` [width] unless they are null. `x` is what was
// normalised, the sum included.
struct NormRowsBackward {
  int64_t rows, width;
  const float *gradient, *x, *mean, *rstd, *weight, *addend;
  float *dx, *dweight, *dbias;
};
void normalize_rows_backward(const NormRowsBackward& n);

// --- bfloat16, as its 16 bits --------------------------------------------------------------------

void widen(const uint16_t* x, float* y, int64_t count);
void narrow(const float* x, uint16_t* y, int64_t count);  // to the nearest, of two to the even one

// --- elements ------------------------------------------------------------------------------------

// y = x · scale where the word of an element is at least `limit`, else 0.
void drop(const float* x, const uint32_t* words, uint32_t limit, float scale, float* y,
          int64_t count);

// Σ x², in double; the same number with every instruction set.
double sum_of_squares(const float* x, int64_t count);
double sum_of_squares(const double* x, int64_t count);

// y = silu(gate) · up, and the gradients of both.
void swiglu(const float* gate, const float* up, float* y, int64_t count);
void swiglu_backward(const float* gradient, const float* gate, const float* up, float* dgate,
                     float* dup, int64_t count);

enum class GeluForm { exact, tanh };
void gelu(GeluForm form, const float* x, float* y, int64_t count);
void gelu_backward(GeluForm form, const float* gradient, const float* x, float* dx, int64_t count);

// Turns the pairs (x[i], x[width / 2 + i]) of a row by the angles whose cosines and sines are
// given [width]; `back`: the other way, which is the derivative.
void rotate_row(const float* x, const float* cos, const float* sin, float* y, int64_t width,
                bool back);

// --- classes -------------------------------------------------------------------------------------

// log Σ exp(x[i]), in double, given the largest.
double log_sum_exp(const float* x, int64_t count, float largest);
// to[i] = factor · exp(x[i] - shift) - less.
void probabilities(const float* x, float* to, int64_t count, float shift, float factor, float less);

// --- products ------------------------------------------------------------------------------------

// c = a b, plus the row `bias` [columns] unless it is null: a [rows, depth], b [depth, columns], c
// [rows, columns] with its columns side by side, depth > 0. `row` and `column` are steps from one
// to the next. `panels`: scratch memory on a cache line of its own, of product_scratch floats.
struct Product {
  int64_t rows, columns, depth;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row, b_column;
  const float* bias;
  float* c;
  int64_t c_row;
};
void product(const Product& p, float* panels);
int64_t product_scratch(int64_t depth, int64_t columns);

}  // namespace nns::ops
