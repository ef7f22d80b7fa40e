// Derivatives of matrix products. Products of many dimensions are done on matrices: leading
// dimensions of an operand that the other does not share are rows.
#include <algorithm>

#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

int64_t rows_of(const Shape& shape) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}
Ref mm(CallWriter& e, Ref a, Ref b) {
  return e("aten::mm", a, b);
}

// y = x Wᵀ + b: dx = dy W, dW = dyᵀ x, db = Σ dy.
void linear(B& b) {
  const Ref weight = b.in("weight");
  if (b.rank("weight") == 1) {  // one output without a dimension
    const Ref g = b("aten::unsqueeze", b.grad(), -1);
    if (b.needs("input")) b.give("input", b.e.mul(g, weight));
    if (b.needs("weight")) b.give("weight", b.e.mul(g, b.in("input")));
    b.give("bias", b.grad());
    return;
  }
  if (b.needs("input")) b.give("input", b("nnscaler::linear_input", b.grad(), weight));
  if (b.needs("weight")) b.give("weight", b("nnscaler::linear_weight", b.grad(), b.in("input")));
  b.give("bias", b.grad());  // summed over all but the outputs
}

void mm_rule(B& b) {
  if (b.needs("self")) b.give("self", mm(b.e, b.grad(), b.e.conj(b.e.t(b.in("mat2")))));
  if (b.needs("mat2")) b.give("mat2", mm(b.e, b.e.conj(b.e.t(b.in("self"))), b.grad()));
}

void bmm_rule(B& b) {
  if (b.needs("self"))
    b.give("self", b("aten::bmm", b.grad(), b.e.conj(b.e.transpose(b.in("mat2"), 1, 2))));
  if (b.needs("mat2"))
    b.give("mat2", b("aten::bmm", b.e.conj(b.e.transpose(b.in("self"), 1, 2)), b.grad()));
}

void addmm(B& b) {
  b.give("self", b.e.mul(b.grad(), b.real("beta", 1)));
  const Ref g = b.e.mul(b.grad(), b.real("alpha", 1));
  if (b.needs("mat1")) b.give("mat1", mm(b.e, g, b.e.t(b.in("mat2"))));
  if (b.needs("mat2")) b.give("mat2", mm(b.e, b.e.t(b.in("mat1")), g));
}

void baddbmm(B& b) {
  b.give("self", b.e.mul(b.grad(), b.real("beta", 1)));
  const Ref g = b.e.mul(b.grad(), b.real("alpha", 1));
  if (b.needs("batch1")) b.give("batch1", b("aten::bmm", g, b.e.transpose(b.in("batch2"), 1, 2)));
  if (b.needs("batch2")) b.give("batch2", b("aten::bmm", b.e.transpose(b.in("batch1"), 1, 2), g));
}

void mv(B& b) {
  if (b.needs("self")) b.give("self", b("aten::outer", b.grad(), b.in("vec")));
  if (b.needs("vec")) b.give("vec", b("aten::mv", b.e.t(b.in("self")), b.grad()));
}

void dot(B& b) {
  if (b.needs("self")) b.give("self", b.e.mul(b.grad(), b.in("tensor")));
  if (b.needs("tensor")) b.give("tensor", b.e.mul(b.grad(), b.in("self")));
}

void outer(B& b) {
  if (b.needs("self")) b.give("self", b("aten::mv", b.grad(), b.in("vec2")));
  if (b.needs("vec2")) b.give("vec2", b("aten::mv", b.e.t(b.grad()), b.in("self")));
}

// matmul as ATen reads it: vectors become matrices, rows of a matrix take all leading dimensions,
// anything else is a batch of products over broadcast leading dimensions.
bool matmul(Forward& f) {
  Ref a = f.in("self"), b = f.in("other");
  const Shape sa = f.shape("self"), sb = f.shape("other");
  if (!f.training()) return false;
  const auto call = [&](std::string_view op, Ref x, auto... rest) {
    return f.grad_call(op, x, rest...);
  };
  const auto reshape = [&](Ref x, const Shape& to) {
    return f.e.shape(x) == to ? x : call("aten::reshape", x, to);
  };
  if (sa.size() == 1 && sb.size() == 1) {
    f.result(call("aten::dot", a, b));
    return true;
  }
  if (sa.size() == 2 && sb.size() == 1) {
    f.result(call("aten::mv", a, b));
    return true;
  }
  if (sa.size() == 2 && sb.size() == 2) {
    f.result(call("aten::mm", a, b));
    return true;
  }
  if (sa.size() == 1 && sb.size() == 2) {
    f.result(reshape(call("aten::mm", reshape(a, {1, sa[0]}), b), {sb[1]}));
    return true;
  }
  if (sb.size() <= 2) {  // many rows times one matrix
    Shape to(sa.begin(), sa.end() - 1);
    const Ref rows = reshape(a, {rows_of(sa), sa.back()});
    if (sb.size() == 2) to.push_back(sb[1]);
    f.result(reshape(sb.size() == 2 ? call("aten::mm", rows, b) : call("aten::mv", rows, b), to));
    return true;
  }
  Shape full_a = sa, full_b = sb;
  if (sa.size() == 1) full_a.insert(full_a.begin(), 1);
  const size_t rank = std::max(full_a.size(), full_b.size());
  const auto pad = [rank](Shape s) {
    s.insert(s.begin(), rank - s.size(), 1);
    return s;
  };
  const Shape pa = pad(full_a), pb = pad(full_b);
  Shape batch;
  int64_t products = 1;
  for (size_t i = 0; i + 2 < rank; ++i) {
    batch.push_back(pa[i] == 1 ? pb[i] : pa[i]);
    products *= batch.back();
  }
  const auto as_batch = [&](Ref x, const Shape& padded) {
    Shape full = batch;
    full.insert(full.end(), padded.end() - 2, padded.end());
    x = reshape(x, padded);
    if (padded != full) x = call("aten::expand", x, full);
    return reshape(x, {products, padded[rank - 2], padded[rank - 1]});
  };
  const Ref product = call("aten::bmm", as_batch(a, pa), as_batch(b, pb));
  Shape to = batch;
  if (sa.size() > 1) to.push_back(pa[rank - 2]);
  to.push_back(pb[rank - 1]);
  f.result(reshape(product, to));
  return true;
}

}  // namespace

void add_product_derivatives(Records& records) {
  records.derive("aten::linear", gradient(linear));
  records.derive("nnscaler::tiled_linear", gradient(linear));
  records.derive("aten::mm", gradient(mm_rule));
  records.derive("aten::bmm", gradient(bmm_rule));
  records.derive("aten::addmm", gradient(addmm));
  records.derive("aten::baddbmm", gradient(baddbmm));
  records.derive("aten::mv", gradient(mv));
  records.derive("aten::dot", gradient(dot));
  records.derive("aten::outer", gradient(outer));
  records.derive("aten::matmul", expands(matmul));
}

}  // namespace nns::operators
