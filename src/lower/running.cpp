#include "lower/running.h"

#include <algorithm>

#include "graph/nest.h"
#include "operators/record.h"

namespace nns::lower {

using graph::Node;
using operators::CallView;
using operators::Record;

std::vector<bool> depends_on(const graph::Graph& graph, int buffer) {
  std::vector<bool> depends(graph.values.size());
  depends[static_cast<size_t>(buffer)] = true;
  for (const Node& node : graph.nodes) {
    const auto inputs = graph::inputs_of(node);
    const bool any = std::any_of(inputs.begin(), inputs.end(),
                                 [&](int id) { return depends[static_cast<size_t>(id)]; });
    const Record* record = operators::find(node.op);
    if (!any || (record != nullptr && record->shape_only)) continue;
    const CallView call(graph, node);
    const auto reads = [&](std::string_view name) {
      return call.is_tensor(name) && depends[static_cast<size_t>(call.in(name).id)];
    };
    // Running statistics: of those that the call writes, only what continues them depends on them.
    const auto& written = record != nullptr ? record->mutates : std::vector<std::string>{};
    const bool statistics =
        !written.empty() && record->keeps &&
        call.boolean("training", call.boolean("use_input_stats")) &&
        std::all_of(node.args.begin(), node.args.end(), [&](const graph::NamedArg& a) {
          return std::find(written.begin(), written.end(), a.name) != written.end() ||
                 !reads(a.name);
        });
    const auto held = [&](std::string_view name) { return std::optional(reads(name) ? 1.0 : 0.0); };
    for (size_t i = 0; i < node.outputs.size(); ++i)
      depends[static_cast<size_t>(node.outputs[i])] =
          !statistics || record->keeps(call, i, held).value_or(0) != 0;
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
    const Record* record = operators::find(node.op);
    if (record == nullptr || !record->keeps) return std::nullopt;
    // Element by element, also through views: what is summed or repeated on the way is no such
    // form. An integer buffer counts.
    const TensorType& whole = graph_.value({buffer_}).type;
    if (record->mutates.empty() && numel(v.type.shape) != numel(whole.shape)) return std::nullopt;
    if (!is_floating(v.type.dtype) && v.type != whole) return std::nullopt;
    const CallView call(graph_, node);
    const auto output = std::find(node.outputs.begin(), node.outputs.end(), value);
    return record->keeps(call, static_cast<size_t>(output - node.outputs.begin()),
                         [&](std::string_view name) { return operand(call, name); });
  }

 private:
  // Of an operand that is a tensor or a number; nothing where it is no such form.
  std::optional<double> operand(const CallView& call, std::string_view name) const {
    if (call.is_tensor(name)) return of(call.in(name).id);
    return operators::number_of(call, name) ? std::optional<double>(0) : std::nullopt;
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
