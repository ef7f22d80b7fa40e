// Calls of parts: the types and arguments that cuts leave, bound anew.
#include "operators/rest.h"

#include "base/error.h"

namespace nns::operators {

Rest::Rest(const graph::Graph& graph, const graph::Node& node)
    : graph_(graph),
      node_(node),
      binding_(operators::bind(CallView(graph, node))),
      args_(node.args) {}

const TensorType& Rest::type(int id) const {
  const auto own = bound_.find(id);
  return own == bound_.end() ? graph_.value({id}).type : own->second;
}

CallView Rest::view(const std::vector<NamedArg>& args) const {
  return {node_.op, args, [this](int id) -> const TensorType& { return type(id); }};
}

int64_t Rest::parts(const std::string& identifier) const {
  const auto found = parts_.find(identifier);
  return found == parts_.end() ? 1 : found->second;
}

const Binding* Rest::at(int input, int dim) {
  if (!binding_) return nullptr;
  const auto first = binding_->identifier(input, dim);
  const bool used_up = first && parts(*first) > 1 && parts(*first) == binding_->length(*first);
  if (!used_up || !even_) return &*binding_;
  std::map<int, TensorType> outer = std::move(bound_);
  bound_ = local_;
  try {
    binding_ = operators::bind(view(args_));
  } catch (const Error&) {  // the call of a part is none of the operator: nothing is left to cut
    bound_ = std::move(outer);
    even_ = false;
    return &*binding_;
  }
  parts_.clear();
  ++turns_;
  return binding_ ? &*binding_ : nullptr;
}

void Rest::cut(const Split& split, int64_t parts, bool even) {
  const int64_t length = binding_->length(split.identifier), done = this->parts(split.identifier);
  parts_[split.identifier] = done * parts;
  even_ = even_ && even && !split.modify;
  if (!even_) return;
  args_ = local_args(view(args_), split, {0, length / done / parts, length / done, length});
  const std::vector<int> operands = graph::inputs_of(node_);
  const std::map<int, TensorType> before = local_;
  for (size_t i = 0; i < operands.size(); ++i) {
    TensorType mine = before.contains(operands[i]) ? before.at(operands[i]) : type(operands[i]);
    for (const int axis : split.inputs.at(i).axes) mine.shape[static_cast<size_t>(axis)] /= parts;
    local_.insert_or_assign(operands[i], std::move(mine));
  }
}

}  // namespace nns::operators
