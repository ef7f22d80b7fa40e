#include "annotate/registry.h"

#include <map>

#include "base/error.h"

namespace nns::annotate {
namespace {

std::map<std::string, Registered, std::less<>>& registry() {
  thread_local std::map<std::string, Registered, std::less<>> ops;
  return ops;
}

const Registered& of(const CallView& call) {
  const Registered* op = registered(call.op());
  NNS_CHECK(op != nullptr, "{} is not registered", call.op());
  return *op;
}

Types infer_registered(const CallView& call) {
  const Registered& op = of(call);
  if (op.infer) return op.infer(call);
  std::vector<Shape> inputs;
  for (const TensorType* t : call.operands()) inputs.push_back(t->shape);
  if (inputs.empty()) call.fail("no tensor operand; expected one, or a function `infer`");
  std::string why = "it has no annotation";
  for (const std::string& text : op.annotations(call)) {
    const auto shapes = output_shapes(Annotation::parse(text), inputs, integers_of(call), &why);
    if (!shapes) continue;
    Types types;
    for (const Shape& shape : *shapes) types.push_back({shape, call.operands()[0]->dtype});
    return types;
  }
  call.fail(fmt::format("no annotation fits its operands: {}", why));
}

Texts annotations_registered(const CallView& call) {
  return of(call).annotations(call);
}

}  // namespace

void register_op(Registered op) {
  if (op.name.find("::") == std::string::npos || op.name.find('.') != std::string::npos)
    fail(ErrorKind::usage, "[register_op] '{}' is not a name; expected 'library::operator'",
         op.name);
  const Registered* known = registered(op.name);
  if (known == nullptr && find(op.name) != nullptr)
    fail(ErrorKind::usage, "[register_op] {} is an operator of the table", op.name);
  for (const TransformRule& rule : op.rules)
    for (const auto* side : {&rule.inputs, &rule.outputs})
      for (const TensorSplit& t : *side)
        if (t.axes.size() > 1)
          fail(ErrorKind::usage,
               "[register_op] {}: a rule cuts {} dims of one tensor; expected one", op.name,
               t.axes.size());
  const std::string name = op.name;
  Registered& kept = registry()[name] = std::move(op);
  kept.info.name = registry().find(name)->first;
  kept.info.infer = infer_registered;
  kept.info.annotations = annotations_registered;
}

const Registered* registered(std::string_view op) {
  const auto& all = registry();
  if (all.empty()) return nullptr;
  const auto it = all.find(op.substr(0, op.find('.')));
  return it == all.end() ? nullptr : &it->second;
}

std::vector<std::string> registered_names() {
  std::vector<std::string> out;
  for (const auto& [name, op] : registry()) out.push_back(name);
  return out;
}

void clear_registered() {
  registry().clear();
}

}  // namespace nns::annotate
