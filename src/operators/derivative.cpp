// What a backward rule is given, and where its gradients go.
#include "operators/derivative.h"

#include "base/error.h"
#include "operators/record.h"

namespace nns::operators {

std::vector<Ref> Recording::Made::operands() const {
  std::vector<Ref> all;
  for (const NamedArg& a : args) {
    if (const auto* ref = std::get_if<Ref>(&a.value)) all.push_back(*ref);
    if (const auto* refs = std::get_if<std::vector<Ref>>(&a.value))
      all.insert(all.end(), refs->begin(), refs->end());
  }
  return all;
}

Ref Recording::Made::operand(std::string_view name) const {
  for (const NamedArg& a : args)
    if (const auto* ref = std::get_if<Ref>(&a.value); ref != nullptr && a.name == name) return *ref;
  return {-1};
}

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

void backward_by_calls(Backward& b) {
  std::vector<Ref> inputs;
  Types results;
  for (size_t i = 0; i < b.out_count(); ++i) {
    inputs.push_back(b.grad_or_zeros(i));
    results.push_back(b.e.type(b.out(i)));
  }
  for (const NamedArg& arg : b.args())
    if (b.is_tensor(arg.name)) inputs.push_back(b.in(arg.name));
  for (size_t i = 0; i < b.out_count(); ++i) inputs.push_back(b.out(i));

  const auto calls = find(b.op())->backward(b, results);
  std::map<int, Ref> made;
  for (size_t i = 0; i < inputs.size(); ++i) made[calls->inputs.at(i)] = inputs[i];
  const auto replace = [&](Ref& ref) {
    if (ref.id >= 0) ref = made.at(ref.id);
  };
  for (const graph::Node& node : calls->nodes) {
    std::vector<NamedArg> args = node.args;
    for (NamedArg& arg : args) {
      if (auto* ref = std::get_if<Ref>(&arg.value)) replace(*ref);
      if (auto* list = std::get_if<std::vector<Ref>>(&arg.value))
        for (Ref& ref : *list) replace(ref);
    }
    Types types;
    for (const int out : node.outputs) types.push_back(calls->value({out}).type);
    const auto outs = b.e.call_typed(node.op, std::move(args), types);
    for (size_t i = 0; i < outs.size(); ++i) made[node.outputs[i]] = outs[i];
  }
  size_t at = 0;
  for (const NamedArg& arg : b.args())
    if (b.is_tensor(arg.name))
      if (const auto* ref = std::get_if<Ref>(&calls->outputs.at(at++).node))
        b.give(arg.name, made.at(ref->id));
}

}  // namespace nns::operators
