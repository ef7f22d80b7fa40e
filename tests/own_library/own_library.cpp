// A shared library as the user would write it: one operator, registered with LibTorch, that knows
// nothing of nnscaler.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

namespace {

// k x³; autograd follows from the calls.
at::Tensor cube(const at::Tensor& x, double k) {
  return at::mul(at::mul(at::mul(x, x), x), k);
}

}  // namespace

TORCH_LIBRARY(tests_library, m) {
  m.def("cube(Tensor x, float k) -> Tensor", cube);
}
