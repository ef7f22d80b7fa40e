// Splits of calls: annotations bound to a call's shapes, and the arguments of a part.
#include "operators/split.h"

#include <algorithm>

#include "operators/family.h"

namespace nns::operators {

std::map<std::string, int64_t> integers_of(const CallView& call) {
  std::map<std::string, int64_t> out;
  for (const NamedArg& arg : call.args())
    if (const auto* x = std::get_if<int64_t>(&arg.value)) out[arg.name] = *x;
  return out;
}

namespace {

Rules rules_of(const Record& record, const CallView& call) {
  if (const auto* rules = std::get_if<Rules>(&record.rules)) return *rules;
  return std::get<1>(record.rules)(call);
}

}  // namespace

std::optional<Binding> bind(const CallView& call) {
  const Texts alternatives = annotations(call);
  if (alternatives.empty()) return {};
  std::vector<Shape> in, out;
  for (const TensorType* t : call.operands()) in.push_back(t->shape);
  for (const TensorType& t : infer(call)) out.push_back(t.shape);
  std::string why;
  const Record* record = find(call.op());
  for (const std::string& text : alternatives)
    if (auto b =
            Binding::bind(annotate::Annotation::parse(text), in, out, integers_of(call), &why)) {
      b->add_rules(rules_of(*record, call), in);
      return b;
    }
  if (record->registered)
    call.fail(fmt::format("no annotation fits (last tried '{}': {})", alternatives.back(), why));
  nns::fail(ErrorKind::internal, "[annotate.bind] {}: no annotation fits (last tried '{}': {})",
            call.op(), alternatives.back(), why);
}

namespace {

// The tensor over whose elements a sliced random operator counts: attention draws for its scores.
Shape drawn_shape(const CallView& call) {
  Shape shape = first(call).shape;
  if (const TensorType* keys = call.maybe_tensor("k"))
    shape.back() = keys->shape.at(keys->shape.size() - 2);
  return shape;
}

}  // namespace

std::vector<NamedArg> local_args(const CallView& call, const Split& split, const Span& part) {
  if (split.modify)
    return split.modify(call.args(), part.whole / part.length, part.start / part.length);
  std::vector<NamedArg> args = call.args();
  const Record* record = find(call.op());
  const auto cut = [](const std::vector<TensorSplit>& side) {
    return side.empty() ? std::vector<int>{} : side[0].axes;
  };
  for (NamedArg& arg : args) {
    if (record != nullptr && !record->size_arg.empty() && arg.name == record->size_arg) {
      // Arguments that a step before has cut are explicit, and no longer fit the whole tensors.
      Shape shape = call.ints(record->size_arg);
      if (std::find(shape.begin(), shape.end(), -1) != shape.end()) shape = infer(call)[0].shape;
      for (const int axis : cut(split.outputs)) {
        int64_t& size = shape[static_cast<size_t>(axis)];
        size = size * part.length / part.whole;
      }
      arg.value = shape;
    } else if (record != nullptr && record->sliced &&
               (arg.name == "offset" || arg.name == "full")) {
      const Shape full = call.has("full") ? call.ints("full") : drawn_shape(call);
      Shape offset = call.has("offset") ? call.ints("offset") : Shape(full.size(), 0);
      for (const int axis : cut(split.inputs)) {
        const auto i = static_cast<size_t>(axis);
        offset[i] += drawn_shape(call)[i] / part.total * part.start;
      }
      arg.value = arg.name == "full" ? full : offset;
    } else if (auto* x = std::get_if<int64_t>(&arg.value); x && arg.name == split.identifier) {
      *x = *x * part.length / part.whole;
    }
  }
  return args;
}

bool makes_addends(const Split& split) {
  return !split.outputs.empty() && split.outputs[0].kind == TensorSplit::Kind::value;
}

bool cuts_first(const Split& split, int dim) {
  if (split.inputs.empty()) return false;
  const auto& axes = split.inputs[0].axes;
  return std::find(axes.begin(), axes.end(), dim) != axes.end();
}

bool is_assisted(const CallView& call, const Split& split) {
  const Record* record = find(call.op());
  return record != nullptr && record->assisted && record->assisted(call, split);
}

}  // namespace nns::operators
