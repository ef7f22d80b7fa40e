// Derivatives of reductions, scans and orderings.
#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

// A reduced tensor in the shape it has with keepdim=true.
Ref restore_dims(B& b, Ref reduced, const std::vector<int64_t>& dims,
                 std::string_view tensor = "self") {
  Shape kept = b.shape(tensor);
  for (int64_t d : dims) kept.at(static_cast<size_t>(d)) = 1;
  return b.e.reshape(reduced, kept);
}

int64_t count(B& b, const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= b.shape("self").at(static_cast<size_t>(d));
  return n;
}

// "dim" where the overload has one, else all dimensions.
std::vector<int64_t> reduced_dims(B& b) {
  return b.dims("dim");
}

// A sum over nothing but the shape of the result leaves the gradient a view.
void sum(B& b) {
  const Ref g = restore_dims(b, b.grad(), reduced_dims(b));
  b.give("self", b.e.expand(g, b.shape("self")));
}

void mean(B& b) {
  const auto dims = reduced_dims(b);
  const auto n = static_cast<double>(count(b, dims));
  const Ref g = restore_dims(b, b("aten::div.Scalar", b.grad(), n), dims);
  b.give("self", b.e.expand(g, b.shape("self")));
}

// d var = 2 (x - mean) / (n - correction)
double correction(B& b) {
  if (b.has("correction")) return b.real("correction");
  return b.boolean("unbiased", true) ? 1 : 0;
}
Ref centred(B& b, const std::vector<int64_t>& dims) {
  const Ref x = b.in("self");
  if (dims.empty()) return b("aten::zeros_like", x);
  return b.e.sub(x, b("aten::mean.dim", x, dims, true));
}
double freedom(B& b, const std::vector<int64_t>& dims) {
  const double n = static_cast<double>(count(b, dims)) - correction(b);
  return n > 0 ? n : 0.0;
}
// value / degrees of freedom, which may be none: then not a number, as the variance itself.
double per_freedom(double value, double n) {
  return value / n;
}

void var(B& b) {
  const auto dims = reduced_dims(b);
  const Ref g = b.e.mul(b.grad(), per_freedom(2, freedom(b, dims)));
  b.give("self", b.e.mul(restore_dims(b, g, dims), centred(b, dims)));
}

void std_(B& b) {
  const auto dims = reduced_dims(b);
  Ref g = b.e.div(b.grad(), b.e.mul(b.out(), freedom(b, dims)));
  g = b("aten::masked_fill.Scalar", g, b("aten::eq.Scalar", b.out(), 0.0), 0.0);
  b.give("self", b.e.mul(restore_dims(b, g, dims), centred(b, dims)));
}

void var_mean(B& b) {
  const auto dims = reduced_dims(b);
  Ref total;
  if (b.grad(0).id >= 0) {
    const Ref g = b.e.mul(b.grad(0), per_freedom(2, freedom(b, dims)));
    total = b.e.mul(restore_dims(b, g, dims), centred(b, dims));
  }
  if (b.grad(1).id >= 0) {
    const Ref g = b("aten::div.Scalar", b.grad(1), static_cast<double>(count(b, dims)));
    const Ref spread = b.e.expand(restore_dims(b, g, dims), b.shape("self"));
    total = total.id < 0 ? spread : b.e.add(total, spread);
  }
  b.give("self", total);
}

// Extremes over several dimensions: ties share the gradient evenly.
void shared_extreme(B& b, const std::vector<int64_t>& dims) {
  const Ref best = restore_dims(b, b.out(), dims);
  const Ref hit = b("aten::eq.Tensor", b.in("self"), best);
  const Ref hits = b("aten::sum.dim_IntList", hit, dims, true);
  const Ref g = b.e.div(restore_dims(b, b.grad(), dims), hits);
  const Ref spread = b.e.mul(b.e.expand(g, b.shape("self")), b.e.cast(hit, b.type("self").dtype));
  b.give("self", spread);
}
void extreme(B& b) {
  shared_extreme(b, b.dims("dim"));
}

// The gradient goes to the elements that `indices` picked along one dimension.
void picked(B& b) {
  const int64_t rank = b.rank("self");
  const Ref index = b.out(1);
  Ref g = b.grad(0);
  if (rank == 0) {
    b.give("self", g);
    return;
  }
  const int64_t dim = b.has("dim") ? b.dim("dim") : rank - 1;
  Ref at = index;
  if (b.e.shape(at).size() != static_cast<size_t>(rank)) {  // keepdim = false
    g = b("aten::unsqueeze", g, dim);
    at = b("aten::unsqueeze", at, dim);
  }
  const Ref zeros = b.e.zeros(g, b.type("self"));
  b.give("self", b("aten::scatter.src", zeros, dim, at, g));
}

void logsumexp(B& b) {
  const auto dims = b.dims("dim");
  const Ref weight = b("aten::exp", b.e.sub(b.in("self"), restore_dims(b, b.out(), dims)));
  b.give("self", b.e.mul(restore_dims(b, b.grad(), dims), weight));
}

void cumsum(B& b) {
  if (b.rank("self") == 0) return b.give("self", b.grad());
  const Shape dim = {b.dim("dim")};
  const Ref turned = b("aten::cumsum", b("aten::flip", b.grad(), dim), dim[0]);
  b.give("self", b("aten::flip", turned, dim));
}

void vector_norm(B& b, double order) {
  const auto dims = b.dims("dim");
  const Ref x = b.in("self"), g = restore_dims(b, b.grad(), dims);
  const Ref norm = restore_dims(b, b.out(), dims);
  if (order == 0) return;  // a count: autograd gives nothing
  if (order == 1) return b.give("self", b.e.mul(g, b("aten::sgn", x)));
  if (std::isinf(order)) {
    const Ref size = b("aten::abs", x);
    const Ref hit = b("aten::eq.Tensor", size, norm);
    const Ref share = b.e.div(g, b("aten::sum.dim_IntList", hit, dims, true));
    const Ref sign = b.e.mul(b("aten::sgn", x), b.e.cast(hit, b.type("self").dtype));
    return b.give("self", b.e.mul(sign, share));
  }
  const Ref none = b("aten::eq.Scalar", norm, 0.0);
  if (order == 2) {
    const Ref scale = b("aten::masked_fill.Scalar", b.e.div(g, norm), none, 0.0);
    return b.give("self", b.e.mul(x, scale));
  }
  // |x|^(p-1) sgn(x) / norm^(p-1)
  const Ref power = b("aten::pow.Tensor_Scalar", b("aten::abs", x), order - 1);
  const Ref below = b("aten::pow.Tensor_Scalar", norm, order - 1);
  const Ref scale = b("aten::masked_fill.Scalar", b.e.div(g, below), none, 0.0);
  Ref slope = b.e.mul(b.e.mul(b("aten::sgn", x), power), scale);
  if (order < 1) slope = b("aten::masked_fill.Scalar", slope, b("aten::eq.Scalar", x, 0.0), 0.0);
  b.give("self", slope);
}

void softmax(B& b) {
  b.give("self", b("aten::_softmax_backward_data", b.grad(), b.out(), b.integer("dim"),
                   b.e.dtype(b.out())));
}
void log_softmax(B& b) {
  b.give("self", b("aten::_log_softmax_backward_data", b.grad(), b.out(), b.integer("dim"),
                   b.e.dtype(b.out())));
}

}  // namespace

void add_reduction_derivatives(Records& records) {
  records.derive("aten::sum", gradient(sum));
  records.derive("aten::mean", gradient(mean));
  records.derive("aten::var", gradient(var));
  records.derive("aten::std", gradient(std_));
  records.derive("aten::var_mean", gradient(var_mean));
  records.derive("aten::amax", gradient(extreme));
  records.derive("aten::amin", gradient(extreme));
  records.derive("aten::max", gradient(extreme));
  records.derive("aten::min", gradient(extreme));
  records.derive("aten::max.dim", gradient(picked));
  records.derive("aten::min.dim", gradient(picked));
  records.derive("aten::topk", gradient(picked));
  records.derive("aten::sort", gradient(picked));
  records.derive("aten::logsumexp", gradient(logsumexp));
  records.derive("aten::cumsum", gradient(cumsum));
  records.derive("aten::_safe_softmax", gradient(softmax));
  records.derive("aten::softmax", gradient(softmax));
  records.derive("aten::_softmax", gradient(softmax));
  records.derive("aten::log_softmax", gradient(log_softmax));
  records.derive("aten::_log_softmax", gradient(log_softmax));
  records.derive("aten::norm", gradient([](B& b) { vector_norm(b, b.real("p", 2)); }));
  records.derive("aten::linalg_vector_norm",
                 gradient([](B& b) { vector_norm(b, b.real("ord", 2)); }));
}

}  // namespace nns::operators
