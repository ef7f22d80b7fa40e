#include "lower/running.h"

#include <algorithm>

#include "annotate/grammar.h"
#include "annotate/op_table.h"
#include "graph/nest.h"

namespace nns::lower {

using graph::Node;

namespace {

// zeros_like, new_full, …
bool reads_shape_alone(std::string_view op) {
  return op.starts_with("aten::new_") || op.substr(0, op.rfind('.')).ends_with("_like");
}

}  // namespace

std::vector<bool> depends_on(const graph::Graph& graph, int buffer) {
  std::vector<bool> depends(graph.values.size());
  depends[static_cast<size_t>(buffer)] = true;
  for (const Node& node : graph.nodes) {
    const auto inputs = graph::inputs_of(node);
    const bool any = std::any_of(inputs.begin(), inputs.end(),
                                 [&](int id) { return depends[static_cast<size_t>(id)]; });
    if (!any || reads_shape_alone(node.op)) continue;
    const annotate::CallView call(graph, node);
    const auto reads = [&](const char* name) {
      const graph::Arg* arg = call.find(name);
      const auto* ref = arg != nullptr ? std::get_if<graph::ValueRef>(arg) : nullptr;
      return ref != nullptr && ref->id >= 0 && depends[static_cast<size_t>(ref->id)];
    };
    const bool statistics = node.op.starts_with("aten::batch_norm") && call.boolean("training") &&
                            !reads("input") && !reads("weight") && !reads("bias");
    for (size_t i = 0; i < node.outputs.size(); ++i)
      depends[static_cast<size_t>(node.outputs[i])] =
          !statistics || (i == 1 && reads("running_mean")) || (i == 2 && reads("running_var"));
  }
  return depends;
}

bool is_read(const graph::Graph& graph, int buffer) {
  const auto depends = depends_on(graph, buffer);
  bool shows = false;
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) { shows = shows || depends[static_cast<size_t>(id)]; });
  return shows ||
         std::any_of(graph.buffer_updates.begin(), graph.buffer_updates.end(), [&](const auto& u) {
           return u.first != buffer && depends[static_cast<size_t>(u.second)];
         });
}

namespace {

// Numbers a of values that are a · buffer + something else.
class Kept {
 public:
  Kept(const graph::Graph& graph, int buffer)
      : graph_(graph), buffer_(buffer), depends_(depends_on(graph, buffer)) {}

  std::optional<double> of(int value) const {
    if (value == buffer_) return 1;
    if (!depends_[static_cast<size_t>(value)]) return 0;
    const graph::Value& v = graph_.value({value});
    const Node& node = graph_.nodes[static_cast<size_t>(v.producer)];
    const annotate::CallView call(graph_, node);
    const std::string_view op = call.base();
    if (op == "aten::batch_norm") {
      const bool mean = node.outputs.at(1) == value;
      const auto before = operand(call, mean ? "running_mean" : "running_var");
      const auto momentum = number(call, "momentum");
      if (!before || !momentum) return std::nullopt;
      return *before * (1 - *momentum);
    }
    // Element by element, also through views: what is summed or repeated on the way is no such
    // form.
    if (numel(v.type.shape) != numel(graph_.value({buffer_}).type.shape)) return std::nullopt;
    if (!is_floating(v.type.dtype) && !is_count(op, v.type)) return std::nullopt;
    return linear(call, op);
  }

 private:
  // An integer buffer counts: sums keep all of it.
  bool is_count(std::string_view op, const TensorType& type) const {
    return type == graph_.value({buffer_}).type && (op == "aten::add" || op == "aten::sub");
  }

  std::optional<double> linear(const annotate::CallView& call, std::string_view op) const {
    const auto self = operand(call, "self");
    if (!self) return std::nullopt;
    if (op == "aten::clone" || op == "aten::contiguous" || op == "aten::alias" ||
        op == "aten::detach" || op == "aten::to" || op == "aten::_to_copy" || op == "aten::view" ||
        op == "aten::reshape" || op == "aten::expand")
      return self;
    if (op == "aten::neg") return -*self;
    if (op == "aten::add" || op == "aten::sub" || op == "aten::rsub") {
      const auto other = operand(call, "other");
      const double alpha = number(call, "alpha").value_or(1);
      if (!other) return std::nullopt;
      if (op == "aten::rsub") return *other - alpha * *self;
      return *self + (op == "aten::add" ? alpha : -alpha) * *other;
    }
    if (op == "aten::mul") return product(call, *self);
    if (op == "aten::div" && !call.has("rounding_mode")) {
      const auto by = number(call, "other");
      return by ? std::optional(*self / *by) : std::nullopt;
    }
    if (op == "aten::lerp") {
      const auto end = operand(call, "end"), weight = number(call, "weight");
      if (!end || !weight) return std::nullopt;
      return *self * (1 - *weight) + *end * *weight;
    }
    if (op == "aten::addcmul" || op == "aten::addcdiv") {
      const bool free = operand(call, "tensor1") == 0.0 && operand(call, "tensor2") == 0.0;
      return free ? self : std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<double> product(const annotate::CallView& call, double self) const {
    if (const auto by = number(call, "other")) return self * *by;
    const auto other = operand(call, "other"), by = number(call, "self");
    return other && by ? std::optional(*other * *by) : std::nullopt;
  }

  // Of an operand that is a tensor or a number; nothing where it is no such form.
  std::optional<double> operand(const annotate::CallView& call, const char* name) const {
    const graph::Arg* arg = call.find(name);
    if (arg == nullptr) return std::nullopt;
    if (const auto* ref = std::get_if<graph::ValueRef>(arg)) return of(ref->id);
    return number(call, name) ? std::optional<double>(0) : std::nullopt;
  }

  static std::optional<double> number(const annotate::CallView& call, const char* name) {
    const graph::Arg* arg = call.find(name);
    if (arg == nullptr) return std::nullopt;
    if (const auto* real = std::get_if<double>(arg)) return *real;
    if (const auto* integer = std::get_if<int64_t>(arg)) return static_cast<double>(*integer);
    return std::nullopt;
  }

  const graph::Graph& graph_;
  int buffer_;
  std::vector<bool> depends_;
};

}  // namespace

std::optional<double> kept(const graph::Graph& graph, int buffer, int value) {
  return Kept(graph, buffer).of(value);
}

}  // namespace nns::lower
