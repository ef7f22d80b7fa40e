// Plans on graphs of other shapes than those they were made for.
#include <algorithm>

#include "annotate/grammar.h"
#include "base/error.h"
#include "plan/plan.h"

namespace nns::plan {
namespace {

using annotate::Binding;
using annotate::TensorSplit;
using graph::Graph;
using graph::Node;

class Fit {
 public:
  Fit(const Plan& plan, const Graph& graph) : plan_(plan), graph_(graph) {}

  Fitted run() {
    std::vector<int> inherited;
    const auto entries = match(plan_, graph_, &inherited);
    for (const Node& node : graph_.nodes) {
      const OpPlan& planned = *entries[static_cast<size_t>(node.id)];
      const bool inherits = std::binary_search(inherited.begin(), inherited.end(), node.id);
      out_.ops.push_back(inherits ? inherit(node, planned) : fitted(node, planned));
    }
    return std::move(out_);
  }

 private:
  std::optional<Binding> binding(const Node& node) const {
    return annotate::bind(annotate::CallView(graph_, node));
  }

  // The plan's entry with steps that fit the node's shapes.
  OpPlan fitted(const Node& node, OpPlan op) {
    const bool whole =
        std::all_of(op.steps.begin(), op.steps.end(), [](const Step& s) { return s.input < 0; });
    if (whole) return op;
    const auto b = binding(node);
    std::map<std::string, int64_t> cuts;
    std::optional<std::string> why;
    if (!b) why = "it has no annotation";
    for (Step& s : op.steps) {
      if (s.input < 0 || why) continue;
      const auto id = b->identifier(s.input, s.dim);
      int64_t parts = s.parts;
      if (id) {
        auto& before = cuts.try_emplace(*id, 1).first->second;
        parts = before *= s.parts;
      }
      if (!s.sizes.empty()) {
        why = b->refusal(s.input, s.dim, s.sizes);
        continue;
      }
      why = b->refusal(s.input, s.dim, parts);
      if (!why || (plan_.strict && !s.uneven)) continue;
      // Uneven parts of uneven parts have no layout.
      why = parts == s.parts ? b->refusal(s.input, s.dim, parts, true) : why;
      if (!why) s.uneven = true;
    }
    if (!why) return op;
    if (plan_.strict)
      throw Error(
          ErrorKind::plan,
          fmt::format("[plan.fit] {} ({}): {}", to_string(op.key), short_form(node.loc), *why),
          "pas_config.strict refuses shapes that the plan's steps do not divide");
    out_.warnings.push_back(fmt::format("{} ({}) is replicated for these shapes: {}",
                                        to_string(op.key), short_form(node.loc), *why));
    op.steps = {{-1, 0, op.parts()}};
    return op;
  }

  // An operator that the plan does not know goes where the producer of its first operand runs, cut
  // as that one makes the operand, if it can be.
  OpPlan inherit(const Node& node, OpPlan op) {
    op.key = {node.module, node.op, node.ordinal};
    const int parts = op.parts();
    op.recompute = -1;
    op.hooks = {};
    op.steps = {{-1, 0, parts}};
    const auto inputs = graph::inputs_of(node);
    const auto b = binding(node);
    for (size_t i = 0; b && i < inputs.size(); ++i) {
      const int producer = graph_.values[static_cast<size_t>(inputs[i])].producer;
      if (producer < 0) continue;
      if (auto steps = follow(*b, static_cast<int>(i), inputs[i], producer)) op.steps = *steps;
      break;
    }
    out_.notes.push_back(fmt::format("{} is not in the plan: it runs with what makes its operand",
                                     to_string(op.key)));
    return op;
  }

  // Steps that cut operand `input` as its producer makes it; nothing if this call cannot be.
  std::optional<std::vector<Step>> follow(const Binding& b, int input, int value,
                                          int producer) const {
    const Node& maker = graph_.nodes[static_cast<size_t>(producer)];
    const auto of = binding(maker);
    const auto which = static_cast<size_t>(
        std::find(maker.outputs.begin(), maker.outputs.end(), value) - maker.outputs.begin());
    std::vector<Step> steps;
    std::map<std::string, int64_t> cuts;
    for (const Step& s : out_.ops[static_cast<size_t>(producer)].steps) {
      Step mine{-1, 0, s.parts};
      if (s.input >= 0) {
        const TensorSplit t = of->split(s.input, s.dim, s.parts, true).outputs.at(which);
        if (t.kind == TensorSplit::Kind::dims) {
          if (t.axes.size() != 1 || s.uneven) return {};
          const auto id = b.identifier(input, t.axes[0]);
          if (!id) return {};
          auto& before = cuts.try_emplace(*id, 1).first->second;
          before *= s.parts;
          if (b.refusal(input, t.axes[0], before)) return {};
          mine = {input, t.axes[0], s.parts};
        }
      }
      steps.push_back(mine);
    }
    return steps;
  }

  const Plan& plan_;
  const Graph& graph_;
  Fitted out_;
};

}  // namespace

Fitted fit(const Plan& plan, const Graph& graph) {
  return Fit(plan, graph).run();
}

}  // namespace nns::plan
