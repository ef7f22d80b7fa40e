// A shared library as the user would write it: operators, registered with LibTorch, that know
// nothing of nnscaler.
#include <ATen/core/Tensor.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

namespace {

// k x³; autograd follows from the calls.
at::Tensor cube(const at::Tensor& x, double k) {
  return at::mul(at::mul(at::mul(x, x), x), k);
}

// Sliding windows as columns, whose number is a quotient of sizes times another.
at::Tensor windows(const at::Tensor& x, at::IntArrayRef size, at::IntArrayRef dilation,
                   at::IntArrayRef padding, at::IntArrayRef stride) {
  return at::im2col(x, size, dilation, padding, stride);
}

}  // namespace

TORCH_LIBRARY(tests_library, m) {
  m.def("cube(Tensor x, float k) -> Tensor", cube);
  m.def("windows(Tensor x, int[] size, int[] dilation, int[] padding, int[] stride) -> Tensor");
}

// For CPUs alone: shapes cannot be had without running it.
TORCH_LIBRARY_IMPL(tests_library, CPU, m) {
  m.impl("windows", windows);
}
