// Splits of calls: the annotation that fits a call, bound to its shapes, and the arguments of a
// part.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "annotate/grammar.h"
#include "operators/call_view.h"

namespace nns::operators {

using annotate::Binding;
using annotate::Split;
using annotate::TensorSplit;

// Integer arguments of a call by name.
std::map<std::string, int64_t> integers_of(const CallView& call);

// The first alternative of a call that fits its shapes, bound. Nothing when the call is never
// split. Throws an internal Error when there are alternatives but none fits.
std::optional<Binding> bind(const CallView& call);

// The part of an identifier that a split call works on: `length` of `whole` elements from `start`.
// `whole` is what earlier splits left of `total`.
struct Span {
  int64_t start = 0, length = 0, whole = 0, total = 0;
};

// Arguments of the part of a split call: those that spell sizes are rewritten to the local ones,
// `offset` and `full` of a random operator say where the part lies. Tensors keep their ids.
std::vector<NamedArg> local_args(const CallView& call, const Split& split, const Span& part);

// Whether parts of the split are more than the call on local tensors (operators/part.h).
bool is_assisted(const CallView& call, const Split& split);
// Whether a split makes of the first output an addend.
bool makes_addends(const Split& split);
// Whether a split cuts a dimension of the first operand.
bool cuts_first(const Split& split, int dim);

}  // namespace nns::operators
