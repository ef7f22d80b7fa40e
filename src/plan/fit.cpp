// Plans on other graphs than those they were made for: other shapes, other operators.
#include <algorithm>

#include "base/error.h"
#include "operators/rest.h"
#include "plan/map.h"

namespace nns::plan {
namespace {

using annotate::Binding;
using annotate::TensorSplit;
using graph::Graph;
using graph::Node;

class Fit {
 public:
  Fit(const Plan& plan, const Graph& graph, const Resting* rests)
      : plan_(plan), graph_(graph), rests_(rests) {}

  Fitted run() {
    const std::vector<Mapped> mapped = map();
    for (const Node& node : graph_.nodes) {
      const Mapped& m = mapped[static_cast<size_t>(node.id)];
      if (m.exact)
        out_.ops.push_back(fitted(node, *m.entry));
      else
        out_.ops.push_back(inherit(node, m));
    }
    check_written();
    return std::move(out_);
  }

 private:
  // Where the operators run; sets where weights and buffers rest.
  std::vector<Mapped> map() {
    std::vector<Mapped> out;
    if (rests_ == nullptr && is_for(plan_, graph_)) {
      std::vector<int> stages;
      for (const OpPlan& op : plan_.ops) {
        out.push_back({&op, true, op.stage});
        stages.push_back(op.stage);
      }
      out_.rests = resting(graph_, stages);
      // What reads a buffer that is written runs where it is written.
      if (plan_.stages > 1 && !graph_.buffer_updates.empty())
        out = map_stages(plan_, graph_, out_.rests);
      return out;
    }
    if (rests_ == nullptr && graph_.training) match(plan_, graph_);
    out = map_stages(plan_, graph_, rests_ == nullptr ? Resting{} : *rests_);
    if (rests_ != nullptr) {
      out_.rests = *rests_;
      return out;
    }
    std::vector<int> stages;
    for (const Mapped& m : out) stages.push_back(m.stage);
    out_.rests = resting(graph_, stages);
    return out;
  }

  // A micro-batch reads what the one before wrote, so a buffer is written where it is read.
  void check_written() const {
    for (const auto& [buffer, content] : graph_.buffer_updates) {
      const std::string& name = graph_.value({buffer}).name;
      const std::set<int>& home = out_.rests.at(name);
      const auto refuse = [&](int node, const char* what) {
        const OpPlan& op = out_.ops[static_cast<size_t>(node)];
        if (home.contains(op.stage)) return;
        throw Error(
            ErrorKind::plan,
            fmt::format("[plan.buffer] {} is {} in stage {} ({} at {}), but rests in "
                        "stage {}, which writes it; expected one stage",
                        name, what, op.stage, to_string(op.key),
                        short_form(graph_.nodes[static_cast<size_t>(node)].loc), *home.begin()),
            "put what reads and writes the buffer into one stage, or use a policy "
            "without stages, such as data");
      };
      for (const Node& node : graph_.nodes) {
        const auto inputs = graph::inputs_of(node);
        if (std::find(inputs.begin(), inputs.end(), buffer) != inputs.end())
          refuse(node.id, "read");
      }
      const int producer = graph_.value({content}).producer;
      if (producer >= 0) refuse(producer, "written");
    }
  }

  std::optional<Binding> binding(const Node& node) const {
    return operators::bind(operators::CallView(graph_, node));
  }

  // Why a cut does not fit what those before have left; one that only uneven parts fit gets them.
  std::optional<std::string> misfit(const Binding& b, const operators::Rest& rest, Cut& s) const {
    if (!s.sizes.empty()) return b.refusal(s.input, s.dim, s.sizes);
    const auto id = b.identifier(s.input, s.dim);
    const int64_t parts = s.parts * (id ? rest.parts(*id) : 1);
    const auto why = b.refusal(s.input, s.dim, parts);
    if (!why || (plan_.strict && !s.uneven)) return why;
    if (parts != s.parts) return why;  // uneven parts of uneven parts have no layout
    const auto uneven = b.refusal(s.input, s.dim, parts, true);
    if (!uneven) s.uneven = true;
    return uneven;
  }

  // The plan's entry with cuts that fit the node's shapes.
  OpPlan fitted(const Node& node, OpPlan op) {
    const bool whole =
        std::all_of(op.cuts.begin(), op.cuts.end(), [](const Cut& c) { return c.input < 0; });
    if (whole) return op;
    operators::Rest rest(graph_, node);
    std::optional<std::string> why;
    for (Cut& s : op.cuts) {
      if (s.input < 0 || why) continue;
      const Binding* b = rest.at(s.input, s.dim);
      why = b == nullptr ? "it has no annotation" : misfit(*b, rest, s);
      if (!why) rest.cut(b->split(s.input, s.dim, s.parts, s.uneven), s.parts, !s.uneven);
    }
    if (!why) return op;
    if (plan_.strict)
      throw Error(
          ErrorKind::plan,
          fmt::format("[plan.fit] {} ({}): {}", to_string(op.key), short_form(node.loc), *why),
          "pas_config.strict refuses shapes that the plan's cuts do not divide");
    out_.warnings.push_back(fmt::format("{} ({}) is replicated for these shapes: {}",
                                        to_string(op.key), short_form(node.loc), *why));
    op.cuts = {{-1, 0, op.parts()}};
    return op;
  }

  // An operator that the plan does not place is cut as another call of it in its module, or as an
  // operand is made in its stage, if it can be.
  OpPlan inherit(const Node& node, const Mapped& m) {
    OpPlan op;
    op.key = {node.module, node.op, node.ordinal};
    op.stage = m.stage;
    op.devices = plan_.stage_devices[static_cast<size_t>(m.stage)];
    op.cuts = {{-1, 0, static_cast<int>(op.devices.size())}};
    if (m.entry != nullptr) {
      OpPlan near = *m.entry;
      const size_t warned = out_.warnings.size();
      near = fitted(node, std::move(near));
      out_.warnings.resize(warned);
      op.cuts = std::move(near.cuts);
      op.devices = std::move(near.devices);
    } else {
      follow_operands(node, op);
    }
    out_.notes.push_back(
        fmt::format("{} is not in the plan: it runs with {}", to_string(op.key),
                    m.entry != nullptr ? to_string(m.entry->key) : "what makes its operand"));
    return op;
  }

  // Cuts an operator as the first operand that its stage makes.
  void follow_operands(const Node& node, OpPlan& op) const {
    const auto inputs = graph::inputs_of(node);
    const auto b = binding(node);
    for (size_t i = 0; b && i < inputs.size(); ++i) {
      const int producer = graph_.values[static_cast<size_t>(inputs[i])].producer;
      if (producer < 0) continue;
      const OpPlan& maker = out_.ops[static_cast<size_t>(producer)];
      if (maker.stage != op.stage) continue;
      if (auto cuts = follow(*b, static_cast<int>(i), inputs[i], producer)) {
        op.cuts = *cuts;
        op.devices = maker.devices;
      }
      return;
    }
  }

  // Cuts of operand `input` as its producer makes it; nothing if this call cannot be.
  std::optional<std::vector<Cut>> follow(const Binding& b, int input, int value,
                                         int producer) const {
    const Node& maker = graph_.nodes[static_cast<size_t>(producer)];
    const auto of = binding(maker);
    const auto which = static_cast<size_t>(
        std::find(maker.outputs.begin(), maker.outputs.end(), value) - maker.outputs.begin());
    std::vector<Cut> cuts;
    std::map<std::string, int64_t> done;
    for (const Cut& s : out_.ops[static_cast<size_t>(producer)].cuts) {
      Cut mine{-1, 0, s.parts};
      if (s.input >= 0) {
        const TensorSplit t = of->split(s.input, s.dim, s.parts, true).outputs.at(which);
        if (t.kind == TensorSplit::Kind::dims) {
          if (t.axes.size() != 1 || s.uneven) return {};
          const auto id = b.identifier(input, t.axes[0]);
          if (!id) return {};
          auto& before = done.try_emplace(*id, 1).first->second;
          before *= s.parts;
          if (b.refusal(input, t.axes[0], before)) return {};
          mine = {input, t.axes[0], s.parts};
        }
      }
      cuts.push_back(mine);
    }
    return cuts;
  }

  const Plan& plan_;
  const Graph& graph_;
  const Resting* rests_;
  Fitted out_;
};

}  // namespace

Fitted fit(const Plan& plan, const Graph& graph, const Resting* rests) {
  return Fit(plan, graph, rests).run();
}

}  // namespace nns::plan
