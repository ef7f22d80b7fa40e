// Emission of calls and the shorthands that rules share.
#include "lower/emitter.h"

#include <algorithm>

#include "annotate/op_table.h"
#include "base/error.h"
#include "lower/signature.h"

namespace nns::lower {

void Emitter::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end())
    notes_.push_back(std::move(text));
}

Ref Emitter::new_slot(TensorType type, SlotRole role, std::string name) {
  const int id = static_cast<int>(program_.slots.size());
  program_.slots.push_back({id, std::move(type), role, std::move(name), {}, {}});
  return {id};
}

std::vector<NamedArg> Emitter::bind(std::string_view op, std::initializer_list<Arg> args) {
  const auto names = argument_names(op);
  NNS_CHECK(args.size() <= names.size(), "{} takes {} arguments, not {}", op, names.size(),
            args.size());
  std::vector<NamedArg> bound;
  bound.reserve(args.size());
  size_t i = 0;
  for (const Arg& value : args) bound.push_back({std::string(names[i++]), value});
  return bound;
}

std::vector<Ref> Emitter::call(std::string_view op, std::vector<NamedArg> args) {
  if (auto types = derivative_types(op, args, program_))
    return call_typed(op, std::move(args), *types);
  const annotate::CallView view(
      op, args, [this](int id) -> const TensorType& { return program_.slot(id).type; });
  return call_typed(op, std::move(args), annotate::infer(view));
}

std::vector<Ref> Emitter::call_typed(std::string_view op, std::vector<NamedArg> args,
                                     const std::vector<TensorType>& types) {
  NNS_CHECK(out_ != nullptr, "emitter without a segment");
  Instr instr;
  instr.op = op;
  instr.args = std::move(args);
  instr.node = origin_.node;
  instr.module = origin_.module;
  instr.loc = origin_.loc;
  std::vector<Ref> outs;
  const auto mask = std::find_if(instr.args.begin(), instr.args.end(),
                                 [](const NamedArg& a) { return a.name == "output_mask"; });
  for (size_t i = 0; i < types.size(); ++i) {
    // An output that is masked off is not a tensor at all.
    const bool made = mask == instr.args.end() || std::get<std::vector<bool>>(mask->value).at(i);
    outs.push_back(made ? new_slot(types[i], SlotRole::activation) : Ref{});
    instr.outs.push_back(outs.back().id);
  }
  out_->push_back(std::move(instr));
  return outs;
}

Ref Emitter::reshape(Ref x, const Shape& to) {
  return shape(x) == to ? x : (*this)("aten::reshape", x, to);
}

Ref Emitter::expand(Ref x, const Shape& to) {
  return shape(x) == to ? x : (*this)("aten::expand", x, to);
}

Ref Emitter::cast(Ref x, DType to) {
  if (dtype(x) == to) return x;
  if (is_complex(dtype(x)) && !is_complex(to)) x = (*this)("aten::real", x);
  return dtype(x) == to ? x : (*this)("aten::to.dtype", x, to);
}

Ref Emitter::sum_to(Ref x, const Shape& to) {
  const Shape from = shape(x);
  if (from == to) return x;
  const size_t lead = from.size() - to.size();
  Shape dims;
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || (to[i - lead] == 1 && from[i] != 1)) dims.push_back(static_cast<int64_t>(i));
  // Leading dimensions vanish and kept ones stay with size 1: one sum serves when only one of both
  // kinds is there, else a reshape of the small result follows.
  const bool keep = lead == 0;
  if (!dims.empty()) x = (*this)("aten::sum.dim_IntList", x, dims, keep);
  return reshape(x, to);
}

Ref Emitter::transpose(Ref x, int64_t a, int64_t b) {
  const auto rank = static_cast<int64_t>(shape(x).size());
  if (a < 0) a += rank;
  if (b < 0) b += rank;
  if (a == b) return x;
  if (rank == 2) return (*this)("aten::t", x);
  return (*this)("aten::transpose.int", x, a, b);
}

Ref Emitter::conj(Ref x) {
  return is_complex(dtype(x)) ? (*this)("aten::conj_physical", x) : x;
}

Ref Emitter::mul(Ref a, double factor) {
  if (factor == 1.0) return a;
  if (factor == -1.0) return neg(a);
  return (*this)("aten::mul.Scalar", a, factor);
}

Ref Emitter::add(Ref a, double number) {
  return number == 0.0 ? a : (*this)("aten::add.Scalar", a, number);
}

Ref Emitter::full(Ref like, const TensorType& type, double value) {
  if (value == 0.0) return (*this)("aten::new_zeros", like, type.shape, type.dtype);
  return (*this)("aten::new_full", like, type.shape, value, type.dtype);
}

}  // namespace nns::lower
