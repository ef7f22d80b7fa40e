// Derivatives of operators that address elements by tensors of indices.
#include "operators/family.h"

namespace nns::operators {
namespace {

using B = Backward;

Ref zeros_like_self(B& b) {
  return b.e.zeros(b.grad(), b.type("self"));
}
Ref zeros_at(B& b, Ref gradient) {
  return b("aten::scatter.value", gradient, b.integer("dim"), b.in("index"), 0.0);
}

void index(B& b) {
  b.give("self", b("aten::index_put", zeros_like_self(b), b.arg("indices"), b.grad(), true));
}

void index_put(B& b) {
  if (b.needs("self")) {
    const Ref g = b.grad();
    b.give("self", b.boolean("accumulate") ? g
                                           : b("aten::index_put", g, b.arg("indices"),
                                               b.e.zeros(g, {{}, b.type("self").dtype}), false));
  }
  if (b.needs("values")) b.give("values", b("aten::index.Tensor", b.grad(), b.arg("indices")));
}

void index_select(B& b) {
  if (b.rank("self") == 0) return b.give("self", b.e.reshape(b.grad(), {}));
  b.give("self",
         b("aten::index_add", zeros_like_self(b), b.integer("dim"), b.in("index"), b.grad()));
}

void index_add(B& b) {
  b.give("self", b.grad());
  if (!b.needs("source")) return;
  const Ref picked = b("aten::index_select", b.grad(), b.integer("dim"), b.in("index"));
  const Ref g = b.e.mul(picked, b.real("alpha", 1));
  b.give("source", b.e.reshape(g, b.shape("source")));
}

void gather(B& b) {
  b.give("self",
         b("aten::scatter_add", zeros_like_self(b), b.integer("dim"), b.in("index"), b.grad()));
}

void scatter(B& b) {
  if (b.needs("self")) b.give("self", zeros_at(b, b.grad()));
  if (b.needs("src")) {
    // Of src only the part that the index covers is read.
    const Ref g = b("aten::gather", b.grad(), b.integer("dim"), b.in("index"));
    const Shape full = b.shape("src"), part = b.shape("index");
    Shape pad;
    for (size_t i = full.size(); i-- > 0;) {
      pad.push_back(0);
      pad.push_back(full[i] - part[i]);
    }
    b.give("src", full == part ? g : b("aten::constant_pad_nd", g, pad, 0.0));
  }
}

void scatter_add(B& b) {
  b.give("self", b.grad());
  if (!b.needs("src")) return;
  const Ref g = b("aten::gather", b.grad(), b.integer("dim"), b.in("index"));
  const Shape full = b.shape("src"), part = b.shape("index");
  Shape pad;
  for (size_t i = full.size(); i-- > 0;) {
    pad.push_back(0);
    pad.push_back(full[i] - part[i]);
  }
  b.give("src", full == part ? g : b("aten::constant_pad_nd", g, pad, 0.0));
}

// The index broadcasts over the other dimensions.
bool take_along_dim(Forward& f) {
  if (!f.has("dim")) {
    const Ref flat = f.grad_call("aten::reshape", f.in("self"), Shape{numel(f.shape("self"))});
    f.result(f.grad_call("aten::gather", flat, 0,
                         f.e.reshape(f.in("indices"), {numel(f.shape("indices"))})));
    return true;
  }
  Shape self = f.shape("self"), at = f.shape("indices");
  const auto dim = static_cast<size_t>(f.dim("dim"));
  for (size_t i = 0; i < self.size(); ++i) {
    if (i == dim) continue;
    if (self[i] == 1) self[i] = at[i];
    if (at[i] == 1) at[i] = self[i];
  }
  Ref x = f.in("self");
  if (f.shape("self") != self) x = f.grad_call("aten::expand", x, self);
  f.result(
      f.grad_call("aten::gather", x, static_cast<int64_t>(dim), f.e.expand(f.in("indices"), at)));
  return true;
}

void index_fill(B& b) {
  if (b.needs("self"))
    b.give("self",
           b("aten::index_fill.int_Scalar", b.grad(), b.integer("dim"), b.in("index"), 0.0));
  if (b.needs("value")) {  // an index that comes twice counts once
    const Ref rest =
        b("aten::index_fill.int_Scalar", b.grad(), b.integer("dim"), b.in("index"), 0.0);
    b.give("value", b.e.sub(b.grad(), rest));
  }
}

void embedding(B& b) {
  b.give("weight", b.e.emit_typed({b.type("weight")}, "aten::embedding_dense_backward", b.grad(),
                                  b.in("indices"), b.shape("weight")[0],
                                  b.integer("padding_idx", -1), b.boolean("scale_grad_by_freq"))
                       .front());
}

}  // namespace

void add_index_derivatives(Records& records) {
  records.derive("aten::embedding", gradient(embedding));
  records.derive("aten::index", gradient(index));
  records.derive("aten::index_put", gradient(index_put));
  records.derive("aten::index_select", gradient(index_select));
  records.derive("aten::index_add", gradient(index_add));
  records.derive("aten::index_fill", gradient(index_fill));
  records.derive("aten::gather", gradient(gather));
  records.derive("aten::scatter.value",
                 gradient([](B& b) { b.give("self", zeros_at(b, b.grad())); }));
  records.derive("aten::scatter.src", gradient(scatter));
  records.derive("aten::scatter_add", gradient(scatter_add));
  records.derive("aten::take_along_dim", expands(take_along_dim));
}

}  // namespace nns::operators
