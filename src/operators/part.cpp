// What the parts of several operators have in common.
#include "operators/part.h"

namespace nns::operators {

Ref Part::summed(Ref x, const Shape& ranks, bool partial) {
  const std::vector<TensorType> types{e.type(x)};
  return recording_
      .record("comm::all_reduce",
              {{"self", x}, {"group", ranks}, {"grad_group", partial ? ranks : Shape{}}}, &types)
      .front();
}

Ref Part::plain_sum(Ref x, const Shape& ranks, const char* reduce) {
  std::vector<NamedArg> args = {{"self", x}, {"group", ranks}};
  if (reduce != nullptr) args.push_back({"reduce", std::string(reduce)});
  return e.call_typed("comm::all_reduce", std::move(args), {e.type(x)}).front();
}

Ref Part::first_only(std::string_view operand, const Shape& ranks) {
  const std::vector<TensorType> types{type(operand)};
  return recording_.record("comm::value_chunk", {{"self", in(operand)}, {"group", ranks}}, &types)
      .front();
}

std::pair<Ref, Ref> Part::local_positions(Ref positions, std::string_view operand, int64_t dim) {
  const int64_t shift = placed.place(operand, dim, [](int64_t start, int64_t) { return -start; });
  const Ref shifted = e("aten::add.Scalar", positions, shift);
  const Ref outside = e("aten::logical_or", e("aten::lt.Scalar", shifted, int64_t{0}),
                        e("aten::ge.Scalar", shifted, placed.length(operand, dim)));
  return {e("aten::masked_fill.Scalar", shifted, outside, int64_t{0}), outside};
}

}  // namespace nns::operators
