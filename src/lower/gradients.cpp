#include "lower/gradients.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "lower/uses.h"

namespace nns::lower {
namespace {

void visit_results(const graph::Nest& nest, const std::function<void(ValueRef)>& visit) {
  if (const auto* ref = std::get_if<ValueRef>(&nest.node)) visit(*ref);
  if (const auto* fields =
          std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node))
    for (const auto& [key, field] : *fields) visit_results(field, visit);
}

// Whether the call can write its result where the caller says: its schema ends in `out`, by
// position.
bool can_write_into(const Instr& instr) {
  const operators::Schema* schema = operators::schema_of(instr.op);
  if (schema == nullptr || schema->parameters.empty()) return false;
  const operators::Parameter& last = schema->parameters.back();
  return last.name == "out" && last.otherwise && !last.keyword_only;
}

// Whether the call only looks at a contiguous tensor in another shape.
bool is_reshape(const Instr& instr) {
  const operators::Record* record = operators::find(instr.op);
  using operators::View;
  return record != nullptr && (record->view == View::reshape || record->view == View::strided ||
                               record->view == View::flatten);
}

const BlockRun* block_at(const Segment& segment, size_t instr) {
  for (const BlockRun& run : segment.blocks)
    if (run.first <= instr && instr < run.last) return &run;
  return nullptr;
}

// The first place from `at` on that is outside of blocks and loops.
size_t outside(const Segment& segment, size_t at) {
  for (const BlockRun& run : segment.blocks)
    if (run.first < at && at < run.last) at = run.last;
  for (const Loop& loop : segment.loops)
    if (loop.first < at && at < loop.last()) at = loop.last();
  return at;
}

// How gradients of a program's parameters are summed.
class Shares {
 public:
  explicit Shares(const Program& program) {
    for (size_t i = 0; i < program.shares.size(); ++i)
      of_[program.parameters[i]] = &program.shares[i];
  }
  // Whether ranks do something with it together once a step: sum it, or gather its weight.
  bool is_shared(int slot) const {
    const Share& share = of(slot);
    return !share.reduce.empty() || (share.zero != plan::Zero::none && !share.sharded());
  }
  const Share& of(int slot) const {
    static const Share none;
    const auto it = of_.find(slot);
    return it == of_.end() ? none : *it->second;
  }

 private:
  std::map<int, const Share*> of_;
};

// What gradients of one set have in common.
struct Together {
  std::vector<int> ranks, over;
  int zero;
  bool scatter;
  DType dtype;
  auto operator<=>(const Together&) const = default;

  static Together of(const Shares& shares, const Slot& parameter) {
    const Share& share = shares.of(parameter.id);
    return {share.reduce, share.over, share.zero, share.scatter, parameter.type.dtype};
  }
  GradientSet set() const { return {ranks, {}, over, zero, scatter, false}; }
};

// Parameters that some rank may have a gradient of: in the order of their last addends, then those
// of other ranks; in pipelines in that of the program's parameters.
std::vector<int> order_of(const Program& program, const std::set<std::string>& reached) {
  std::map<int, size_t> last;
  size_t n = 0;
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs)
      if (instr.kind == InstrKind::accumulate) last[instr.target] = n++;
  for (int slot : program.parameters)
    if (reached.contains(program.slot(slot).name)) last.emplace(slot, n++);
  std::vector<int> order;
  for (int slot : program.parameters)
    if (last.contains(slot)) order.push_back(slot);
  if (program.tags == 0)
    std::sort(order.begin(), order.end(), [&](int a, int b) { return last[a] < last[b]; });
  return order;
}

}  // namespace

std::set<std::string> reached_by_gradients(const graph::Graph& graph, bool embedded) {
  std::vector<bool> reached(graph.values.size(), false);
  const auto reach = [&](ValueRef ref) {
    if (ref.id >= 0 && graph.value(ref).requires_grad) reached[static_cast<size_t>(ref.id)] = true;
  };
  for (size_t i = 0; i < graph.outputs.size() && (embedded || i == 0); ++i)
    visit_results(graph.outputs[i], reach);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const graph::Node& node = graph.nodes[n];
    if (std::any_of(node.outputs.begin(), node.outputs.end(),
                    [&](int out) { return out >= 0 && reached[static_cast<size_t>(out)]; }))
      for_each_ref(node.args, reach);
  }
  std::set<std::string> names;
  for (int id : graph.parameters)
    if (reached[static_cast<size_t>(id)]) names.insert(graph.value({id}).name);
  return names;
}

std::vector<GradientSet> gradient_sets(const Program& program, int64_t bytes,
                                       const std::set<std::string>& reached,
                                       const std::set<std::string>& trainable, bool alike) {
  const Shares shares(program);
  const std::vector<int> order = order_of(program, reached);
  std::map<int, size_t> place;
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<GradientSet> out;
  struct Open {
    GradientSet set;
    int64_t bytes = 0;
  };
  std::map<Together, Open> open;
  for (int slot : order) {
    if (!shares.is_shared(slot)) continue;
    const TensorType& type = program.slot(slot).type;
    const Together together = Together::of(shares, program.slot(slot));
    Open& o = open[together];
    if (o.bytes > 0 && o.bytes + bytes_of(type) > bytes) {
      out.push_back(std::move(o.set));
      o = {};
    }
    if (o.set.parameters.empty()) o.set = together.set();
    o.set.parameters.push_back(slot);
    o.bytes += bytes_of(type);
  }
  // The rest in the order in which their last gradients come.
  std::vector<GradientSet> rest;
  for (auto& [key, o] : open)
    if (!o.set.parameters.empty()) rest.push_back(std::move(o.set));
  std::stable_sort(rest.begin(), rest.end(), [&](const GradientSet& a, const GradientSet& b) {
    return place[a.parameters.back()] < place[b.parameters.back()];
  });
  for (GradientSet& s : rest) out.push_back(std::move(s));
  const auto name = [&](const GradientSet& s) { return program.slot(s.parameters.front()).name; };
  if (!alike)
    std::stable_sort(out.begin(), out.end(), [&](const GradientSet& a, const GradientSet& b) {
      return a.ranks != b.ranks ? a.ranks < b.ranks : name(a) < name(b);
    });
  // Parameters of which only other graphs have gradients; then what is summed nowhere, also where
  // this graph has no gradient of it.
  std::map<Together, GradientSet> late, alone;
  for (int slot : program.parameters) {
    const Slot& parameter = program.slot(slot);
    if (!trainable.contains(parameter.name)) continue;
    const Together together = Together::of(shares, parameter);
    if (shares.is_shared(slot) && place.contains(slot)) continue;
    auto& list = shares.is_shared(slot) ? late : alone;
    GradientSet& set = list.try_emplace(together, together.set()).first->second;
    set.late = shares.is_shared(slot);
    set.parameters.push_back(slot);
  }
  for (auto& [key, set] : late) out.push_back(std::move(set));
  for (auto& [key, set] : alone) out.push_back(std::move(set));
  return out;
}

std::vector<GradientSet> gradient_sets_of(const Program& first, const Program& program) {
  std::map<std::string, int> slots;
  for (int slot : program.parameters) slots[program.slot(slot).name] = slot;
  std::vector<GradientSet> out;
  for (const GradientSet& set : first.sets) {
    GradientSet& own = out.emplace_back(set);
    own.parameters.clear();
    for (int slot : set.parameters)
      if (const auto it = slots.find(first.slot(slot).name); it != slots.end())
        own.parameters.push_back(it->second);
  }
  return out;
}

Program step_alone(std::string model, std::vector<Slot> parameters, std::vector<Share> shares) {
  Program p;
  p.model = std::move(model);
  p.slots = std::move(parameters);
  p.shares = std::move(shares);
  std::set<std::string> names;
  for (size_t i = 0; i < p.slots.size(); ++i) {
    p.slots[i].id = static_cast<int>(i);
    p.slots[i].role = SlotRole::parameter;
    p.parameters.push_back(p.slots[i].id);
    names.insert(p.slots[i].name);
  }
  p.sets = gradient_sets(p, Options{}.set_bytes, names, names, true);
  p.step = make_step(p);
  check_step(p);
  return p;
}

void mark_sums(Program& program) {
  if (program.embedded) return;
  for (Segment& segment : program.segments) {
    if (segment.kind == SegmentKind::forward) continue;
    std::map<int, size_t> done;  // parameter → instructions up to its last addend
    for (size_t i = 0; i < segment.instrs.size(); ++i)
      if (segment.instrs[i].kind == InstrKind::accumulate)
        done[segment.instrs[i].target] = outside(segment, i + 1);
    size_t after = 0;
    for (size_t k = 0; k < program.sets.size(); ++k) {
      const GradientSet& set = program.sets[k];
      if ((set.ranks.empty() && !set.scatter) || set.late) continue;
      for (int slot : program.sets[k].parameters)
        if (const auto it = done.find(slot); it != done.end()) after = std::max(after, it->second);
      if (!segment.sums.empty() && segment.sums.back().after == after)
        segment.sums.back().set = static_cast<int>(k);
      else
        segment.sums.push_back({after, static_cast<int>(k)});
    }
  }
}

void write_in_place(Program& program) {
  for (Segment& segment : program.segments) {
    std::map<int, size_t> made, before;  // by slot; by parameter its last accumulation, plus one
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      for (int out : instr.outs) made[out] = i;
      if (instr.kind != InstrKind::accumulate) continue;
      const size_t last = std::exchange(before[instr.target], i + 1);
      auto from = made.find(reads(instr)[0]);
      while (from != made.end() && is_reshape(segment.instrs[from->second]))
        from = made.find(reads(segment.instrs[from->second]).at(0));
      if (from == made.end() || from->second < last || !is_owned(instr)) continue;
      Instr& product = segment.instrs[from->second];
      if (can_write_into(product) && block_at(segment, from->second) == block_at(segment, i))
        product.into = instr.target;
    }
  }
}

}  // namespace nns::lower
