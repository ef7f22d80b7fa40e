#include "lower/running.h"

#include <algorithm>
#include <set>
#include <vector>

#include "annotate/op_table.h"

namespace nns::lower {
namespace {

using annotate::CallView;
using graph::Graph;
using graph::Nest;
using graph::Node;
using Carry = std::optional<double>;

std::optional<double> number(const CallView& call, const char* name) {
  const graph::Arg* arg = call.find(name);
  if (arg == nullptr) return {};
  if (const auto* i = std::get_if<int64_t>(arg)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(arg)) return *d;
  return {};
}

bool reaches(const Nest& nest, const std::vector<bool>& depends) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&nest.node))
    return ref->id >= 0 && depends[static_cast<size_t>(ref->id)];
  if (const auto* fields = std::get_if<std::vector<std::pair<std::string, Nest>>>(&nest.node))
    return std::any_of(fields->begin(), fields->end(),
                       [&](const auto& field) { return reaches(field.second, depends); });
  return false;
}

// Walks the graph once in program order; for each value whether it depends on the buffer, and its
// derivative by the buffer where that is one number.
class Walk {
 public:
  Walk(const Graph& graph, int buffer)
      : graph_(graph), depends_(graph.values.size()), carry_(graph.values.size(), 0.0) {
    depends_[static_cast<size_t>(buffer)] = true;
    carry_[static_cast<size_t>(buffer)] = 1.0;
    for (const Node& node : graph.nodes) visit(node);
  }

  const std::vector<bool>& depends() const { return depends_; }
  Carry carry(int value) const { return carry_[static_cast<size_t>(value)]; }

 private:
  void visit(const Node& node) {
    const auto inputs = graph::inputs_of(node);
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](int id) { return depends_[static_cast<size_t>(id)]; }))
      return;
    const CallView call(graph_, node);
    const std::string base = node.op.substr(0, node.op.find('.'));
    if (base == "aten::batch_norm" && call.boolean("training")) return statistics(node, call);
    const Carry made = node.outputs.size() == 1 ? derivative(node, call, base) : Carry();
    for (int out : node.outputs) set(out, made);
  }

  void set(int value, Carry carry) {
    depends_[static_cast<size_t>(value)] = true;
    carry_[static_cast<size_t>(value)] = carry;
  }

  // The result of a batch norm in training does not read the running statistics.
  void statistics(const Node& node, const CallView& call) {
    const std::set<std::string> own = {"input", "weight", "bias"};
    for (const auto& a : node.args) {
      const auto* ref = std::get_if<graph::ValueRef>(&a.value);
      if (ref == nullptr || ref->id < 0 || !depends_[static_cast<size_t>(ref->id)]) continue;
      if (own.contains(a.name)) {
        for (int out : node.outputs) set(out, {});
        return;
      }
      const Carry before = carry(ref->id);
      const size_t out = a.name == "running_mean" ? 1 : 2;
      if (out < node.outputs.size())
        set(node.outputs[out], before ? Carry(*before * (1 - *number(call, "momentum"))) : Carry());
    }
  }

  Carry derivative(const Node& node, const CallView& call, const std::string& base) const {
    const auto of = [&](const char* name) -> Carry {
      const graph::Arg* arg = call.find(name);
      const auto* ref = arg != nullptr ? std::get_if<graph::ValueRef>(arg) : nullptr;
      return ref != nullptr && ref->id >= 0 ? carry(ref->id) : Carry(0.0);
    };
    const Carry self = of("self");
    if (!self) return {};
    static const std::set<std::string> same = {"aten::alias",  "aten::clone",   "aten::contiguous",
                                               "aten::detach", "aten::reshape", "aten::view"};
    if (same.contains(base)) return self;
    if (base == "aten::add" || base == "aten::sub") {
      const Carry other = of("other");
      const double alpha = number(call, "alpha").value_or(1);
      if (!other) return {};
      return *self + (base == "aten::add" ? alpha : -alpha) * *other;
    }
    if (base == "aten::mul" || base == "aten::div") {
      const auto factor = number(call, "other");
      if (!factor || node.args.size() > 2) return {};
      return base == "aten::mul" ? *self * *factor : *self / *factor;
    }
    if (base == "aten::lerp") {
      const auto weight = number(call, "weight");
      const Carry end = of("end");
      if (!weight || !end) return {};
      return *self * (1 - *weight) + *end * *weight;
    }
    return {};
  }

  const Graph& graph_;
  std::vector<bool> depends_;
  std::vector<Carry> carry_;
};

}  // namespace

Running running(const Graph& graph, int buffer) {
  const Walk walk(graph, buffer);
  Running out;
  for (const Nest& nest : graph.outputs) out.read = out.read || reaches(nest, walk.depends());
  for (const auto& [other, value] : graph.buffer_updates) {
    if (other == buffer)
      out.carry = walk.carry(value);
    else
      out.read = out.read || walk.depends()[static_cast<size_t>(value)];
  }
  const auto& type = graph.values.at(static_cast<size_t>(buffer)).type;
  if (out.carry && !is_floating(type.dtype) && *out.carry != 1) out.carry.reset();
  return out;
}

}  // namespace nns::lower
