// The shorthands that rules share.
#include "operators/call_writer.h"

#include "base/error.h"
#include "operators/record.h"

namespace nns::operators {

std::vector<NamedArg> named_args(std::string_view op, std::vector<Arg> values) {
  const Schema* schema = schema_of(op);
  NNS_CHECK(schema != nullptr, "{} has no schema", op);
  const auto& parameters = schema->parameters;
  NNS_CHECK(values.size() <= parameters.size(), "{} takes {} arguments, not {}", op,
            parameters.size(), values.size());
  std::vector<NamedArg> bound;
  bound.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    bound.push_back({parameters[i].name, std::move(values[i])});
  return bound;
}

std::vector<Ref> CallWriter::call(std::string_view op, std::vector<NamedArg> args) {
  const CallView view(op, args, [this](int id) -> const TensorType& { return type_of(id); });
  const Types types = infer(view);
  return call_typed(op, std::move(args), types);
}

Ref CallWriter::reshape(Ref x, const Shape& to) {
  return shape(x) == to ? x : (*this)("aten::reshape", x, to);
}

Ref CallWriter::expand(Ref x, const Shape& to) {
  return shape(x) == to ? x : (*this)("aten::expand", x, to);
}

Ref CallWriter::cast(Ref x, DType to) {
  if (dtype(x) == to) return x;
  if (is_complex(dtype(x)) && !is_complex(to)) x = (*this)("aten::real", x);
  return dtype(x) == to ? x : (*this)("aten::to.dtype", x, to);
}

Ref CallWriter::sum_to(Ref x, const Shape& to) {
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

Ref CallWriter::transpose(Ref x, int64_t a, int64_t b) {
  const auto rank = static_cast<int64_t>(shape(x).size());
  if (a < 0) a += rank;
  if (b < 0) b += rank;
  if (a == b) return x;
  if (rank == 2) return (*this)("aten::t", x);
  return (*this)("aten::transpose.int", x, a, b);
}

Ref CallWriter::conj(Ref x) {
  return is_complex(dtype(x)) ? (*this)("aten::conj_physical", x) : x;
}

Ref CallWriter::mul(Ref a, double factor) {
  if (factor == 1.0) return a;
  if (factor == -1.0) return neg(a);
  return (*this)("aten::mul.Scalar", a, factor);
}

Ref CallWriter::add(Ref a, double number) {
  return number == 0.0 ? a : (*this)("aten::add.Scalar", a, number);
}

Ref CallWriter::full(Ref like, const TensorType& type, double value) {
  if (value == 0.0) return (*this)("aten::new_zeros", like, type.shape, type.dtype);
  return (*this)("aten::new_full", like, type.shape, value, type.dtype);
}

}  // namespace nns::operators
