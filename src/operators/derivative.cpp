// What a backward rule is given, and where its gradients go.
#include "operators/derivative.h"

#include "base/error.h"

namespace nns::operators {

Backward::Backward(CallWriter& writer, std::string_view op, const std::vector<NamedArg>& args,
                   const std::vector<Ref>& outs, const std::vector<Ref>& grads, const Kept& kept,
                   const std::vector<bool>& needs)
    : RuleCall(writer, op, args),
      outs_(outs),
      grads_(grads),
      kept_(kept),
      needs_(needs),
      given_(needs.size()) {}

Ref Backward::grad_or_zeros(size_t i) {
  if (grads_.at(i).id >= 0) return grads_[i];
  Ref like = grads_[i];
  for (Ref other : grads_)
    if (other.id >= 0) like = other;
  return e.zeros(like, e.type(outs_[i]));
}

Ref Backward::kept(std::string_view name) const {
  const auto it = kept_.find(name);
  NNS_CHECK(it != kept_.end(), "{}: nothing kept as '{}'", op(), name);
  return it->second;
}

std::optional<size_t> Backward::position(std::string_view name, size_t index) const {
  size_t at = 0;
  for (const NamedArg& a : args()) {
    if (const auto* ref = std::get_if<Ref>(&a.value)) {
      if (ref->id < 0) continue;
      if (a.name == name) return at;
      ++at;
    } else if (const auto* refs = std::get_if<std::vector<Ref>>(&a.value)) {
      for (size_t i = 0; i < refs->size(); ++i) {
        if ((*refs)[i].id < 0) continue;
        if (a.name == name && i == index) return at;
        ++at;
      }
    }
  }
  return std::nullopt;
}

bool Backward::needs(std::string_view name, size_t index) const {
  const auto at = position(name, index);
  return at && needs_[*at];
}

void Backward::give(std::string_view name, Ref gradient, size_t index) {
  const auto at = position(name, index);
  if (!at || !needs_[*at] || gradient.id < 0) return;
  NNS_CHECK(given_[*at].id < 0, "{}: gradient of '{}' given twice", op(), name);
  const Arg& a = arg(name);
  const auto* refs = std::get_if<std::vector<Ref>>(&a);
  const TensorType to = e.type(refs != nullptr ? refs->at(index) : std::get<Ref>(a));
  given_[*at] = e.cast(e.sum_to(gradient, to.shape), to.dtype);
}

}  // namespace nns::operators
