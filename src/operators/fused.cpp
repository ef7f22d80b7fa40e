// Calls that do the work of several: chosen while a program is written, where the calls that made
// their operands are of one pattern and their kernel serves the types. The calls that nobody else
// reads then go away.
#include "operators/family.h"
#include "operators/own.h"

namespace nns::operators {
namespace {

using Made = Recording::Made;

// --- gate · up of LLaMA's feed-forward part
// ------------------------------------------------------

Types swiglu(const CallView& call) {
  const TensorType &gate = call.tensor("gate"), &up = call.tensor("up");
  if (gate != up) misfit(call, gate, up, "one type and shape");
  return {gate};
}
Types swiglu_backward(const CallView& call) {
  const TensorType gate = swiglu(call)[0];
  if (call.tensor("grad_output") != gate)
    misfit(call, gate, call.tensor("grad_output"), "one type and shape");
  return {gate, gate};
}
double swiglu_flops(const CallView& call) {
  return 9.0 * static_cast<double>(numel(call.tensor("gate").shape));
}

// The operand of a silu that made this tensor; -1: something else did.
Ref gate_of(const Forward& f, std::string_view name) {
  const Made* made = f.recording().maker(f.in(name));
  return made != nullptr && base_of(made->op) == "aten::silu" ? made->operand("self") : Ref{-1};
}
bool gates(const Forward& f, std::string_view gate, std::string_view up) {
  return f.is_tensor(gate) && f.is_tensor(up) && f.type(gate) == f.type(up) &&
         own_takes(f.e.device(), f.type(gate).dtype) && gate_of(f, gate).id >= 0;
}
bool is_swiglu(const Forward& f) {
  return gates(f, "self", "other") || gates(f, "other", "self");
}
void write_swiglu(Forward& f) {
  const bool first = gates(f, "self", "other");
  const Ref gate = gate_of(f, first ? "self" : "other"), up = f.in(first ? "other" : "self");
  f.result(f.grad_call("nnscaler::swiglu", gate, up));
}
void swiglu_back(Backward& b) {
  const auto outs = b.e.emit("nnscaler::swiglu_backward", b.grad(), b.in("gate"), b.in("up"));
  b.give("gate", outs[0]);
  b.give("up", outs[1]);
}

// --- rotary positions
// ----------------------------------------------------------------------------

// x [… , time, width] with tables [time, width].
Types rope(const CallView& call) {
  const TensorType &x = *call.operands().front(), &cos = call.tensor("cos");
  const size_t rank = x.shape.size();
  if (rank < 2 || x.shape[rank - 1] % 2 != 0 || cos != call.tensor("sin") || cos.dtype != x.dtype ||
      cos.shape != Shape{x.shape[rank - 2], x.shape[rank - 1]})
    misfit(call, x, cos, "tables [time, width] of the last two dimensions, the width even");
  return {x};
}
Texts rope_text(const CallView& call) {
  DimTexts x = letters(rope(call)[0].shape.size());
  x.back() += "^";
  const DimTexts tables(x.end() - 2, x.end());
  return {annotation({x, tables, tables}, {x})};
}
double rope_flops(const CallView& call) {
  return 3.0 * static_cast<double>(numel(call.operands().front()->shape));
}

// What the calls turn(x, cos, sin) = x · cos + cat(-right, left) · sin read.
struct Turn {
  Ref x, cos, sin;
};

bool is_op(const Made* made, std::string_view base) {
  return made != nullptr && base_of(made->op) == base;
}

// Whether `half` is half `index` of x along its last dimension.
bool is_half(const Forward& f, Ref half, Ref x, size_t index) {
  const Made* made = f.recording().maker(half);
  if (made == nullptr || made->output != index || made->outputs != 2 ||
      made->operand("self").id != x.id)
    return false;
  const Record* record = find(made->op);
  const Shape &part = f.e.type_of(half.id).shape, &whole = f.e.type_of(x.id).shape;
  return record != nullptr && record->view == View::split && part.size() == whole.size() &&
         2 * part.back() == whole.back();
}

// cat(-right, left) of x, whose operands are `turned`'s.
bool is_turned(const Forward& f, Ref turned, Ref x) {
  const Made* cat = f.recording().maker(turned);
  if (!is_op(cat, "aten::cat")) return false;
  const std::vector<Ref> parts = cat->operands();
  if (parts.size() != 2 || f.e.type_of(turned.id) != f.e.type_of(x.id)) return false;
  const Made* minus = f.recording().maker(parts[0]);
  return is_op(minus, "aten::neg") && is_half(f, minus->operand("self"), x, 1) &&
         is_half(f, parts[1], x, 0);
}

std::optional<Turn> turn_of(const Forward& f) {
  if (!f.is_tensor("self") || !f.is_tensor("other") || number_of(f, "alpha").value_or(1) != 1)
    return std::nullopt;
  const Made* straight = f.recording().maker(f.in("self"));
  const Made* crossed = f.recording().maker(f.in("other"));
  if (!is_op(straight, "aten::mul") || !is_op(crossed, "aten::mul")) return std::nullopt;
  const Turn t{straight->operand("self"), straight->operand("other"), crossed->operand("other")};
  if (t.x.id < 0 || t.cos.id < 0 || t.sin.id < 0) return std::nullopt;
  const TensorType &x = f.e.type_of(t.x.id), &cos = f.e.type_of(t.cos.id);
  const size_t rank = x.shape.size();
  const bool fits = rank >= 2 && cos == f.e.type_of(t.sin.id) && cos.dtype == x.dtype &&
                    cos.shape == Shape{x.shape[rank - 2], x.shape[rank - 1]};
  const Recording& r = f.recording();
  if (!fits || !own_takes(f.e.device(), x.dtype) || r.requires_grad(t.cos) ||
      r.requires_grad(t.sin) || !is_turned(f, crossed->operand("self"), t.x))
    return std::nullopt;
  return t;
}
bool is_rope(const Forward& f) {
  return turn_of(f).has_value();
}
void write_rope(Forward& f) {
  const Turn t = *turn_of(f);
  f.result(f.grad_call("nnscaler::rope", t.x, t.cos, t.sin));
}
void rope_back(Backward& b) {
  if (b.needs("self"))
    b.give("self", b("nnscaler::rope_backward", b.grad(), b.in("cos"), b.in("sin")));
  if (b.needs("cos")) b.give("cos", b.e.mul(b.grad(), b.in("self")));
  if (b.needs("sin")) {
    const int64_t half = b.shape("self").back() / 2;
    const auto part = [&](int64_t start) {
      return b("aten::narrow", b.in("self"), int64_t{-1}, start, half);
    };
    const std::vector<Ref> parts = {b.e.neg(part(half)), part(0)};
    b.give("sin", b.e.mul(b.grad(), b("aten::cat", parts, int64_t{-1})));
  }
}

}  // namespace

void add_fused(Records& records) {
  records.add({"nnscaler::swiglu"},
              {.infer = swiglu, .annotations = spatial, .flops = swiglu_flops});
  records.add({"nnscaler::swiglu_backward"},
              {.infer = swiglu_backward, .annotations = spatial, .flops = swiglu_flops});
  records.add({"nnscaler::rope", "nnscaler::rope_backward"},
              {.infer = rope, .annotations = rope_text, .flops = rope_flops});
  records.derive("nnscaler::swiglu", gradient(swiglu_back));
  records.derive("nnscaler::rope", gradient(rope_back));
  records.set({"aten::mul"}, [](Record& r) {
    r.kernels.push_back({"nnscaler::swiglu", is_swiglu, write_swiglu});
  });
  records.set({"aten::add"},
              [](Record& r) { r.kernels.push_back({"nnscaler::rope", is_rope, write_rope}); });

  records.examples("nnscaler::swiglu", "{ f(4, 6), f(4, 6) }");
  records.examples("nnscaler::swiglu_backward", "{ f(4, 6), f(4, 6), f(4, 6) }");
  records.examples("nnscaler::rope nnscaler::rope_backward",
                   "{ f(2, 3, 4, 6), f(4, 6), f(4, 6) }, { f(4, 6), f(4, 6), f(4, 6) }");
}

}  // namespace nns::operators
