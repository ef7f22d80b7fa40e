#include "lower/gradients.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "lower/uses.h"

namespace nns::lower {
namespace {

void visit_results(const graph::Nest& nest, const std::function<void(ValueRef)>& visit) {
  if (const auto* ref = std::get_if<ValueRef>(&nest.node)) visit(*ref);
  if (const auto* fields =
          std::get_if<std::vector<std::pair<std::string, graph::Nest>>>(&nest.node))
    for (const auto& [key, field] : *fields) visit_results(field, visit);
}

// Operators that can write their result where the caller says.
constexpr std::array kWriters = {"nnscaler::linear_weight"};
// What only looks at a contiguous result in another shape.
constexpr std::array kShapes = {"aten::reshape", "aten::view", "aten::flatten", "aten::unflatten"};

template <size_t N>
bool is_one_of(std::string_view op, const std::array<const char*, N>& names) {
  return std::find(names.begin(), names.end(), op.substr(0, op.find('.'))) != names.end();
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

// The instruction before `end` that makes the slot, through changes of shape; or `end`.
size_t maker(const Segment& segment, int slot, size_t end) {
  for (size_t i = end; i-- > 0;) {
    const Instr& instr = segment.instrs[i];
    if (std::find(instr.outs.begin(), instr.outs.end(), slot) == instr.outs.end()) continue;
    if (!is_one_of(instr.op, kShapes)) return i;
    slot = reads(instr).at(0);
  }
  return end;
}

const Share* share_of(const Program& program, int slot) {
  for (size_t i = 0; i < program.shares.size(); ++i)
    if (program.parameters[i] == slot) return &program.shares[i];
  return nullptr;
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
  std::vector<GradientSet> out;
  std::vector<int> order;  // parameters by their last accumulation
  for (const Segment& segment : program.segments)
    for (const Instr& instr : segment.instrs) {
      if (instr.kind != InstrKind::accumulate) continue;
      std::erase(order, instr.target);
      order.push_back(instr.target);
    }
  for (int slot : program.parameters)
    if (reached.contains(program.slot(slot).name) &&
        std::find(order.begin(), order.end(), slot) == order.end())
      order.push_back(slot);
  if (program.tags > 0) {
    const std::set<int> present(order.begin(), order.end());
    order.clear();
    for (int slot : program.parameters)
      if (present.contains(slot)) order.push_back(slot);
  }
  struct Open {
    GradientSet set;
    int64_t bytes = 0;
  };
  std::map<std::pair<std::vector<int>, DType>, Open> open;
  for (int slot : order) {
    const Share* share = share_of(program, slot);
    if (share == nullptr || share->reduce.empty()) continue;
    const TensorType& type = program.slot(slot).type;
    Open& o = open[{share->reduce, type.dtype}];
    if (o.bytes > 0 && o.bytes + bytes_of(type) > bytes) {
      out.push_back(std::move(o.set));
      o = {};
    }
    o.set.ranks = share->reduce;
    o.set.parameters.push_back(slot);
    o.bytes += bytes_of(type);
  }
  // The rest in the order in which their last gradients come.
  std::vector<GradientSet> rest;
  for (auto& [key, o] : open)
    if (!o.set.parameters.empty()) rest.push_back(std::move(o.set));
  const auto last = [&](const GradientSet& s) {
    return std::find(order.begin(), order.end(), s.parameters.back());
  };
  std::stable_sort(rest.begin(), rest.end(),
                   [&](const GradientSet& a, const GradientSet& b) { return last(a) < last(b); });
  for (GradientSet& s : rest) out.push_back(std::move(s));
  const auto name = [&](const GradientSet& s) { return program.slot(s.parameters.front()).name; };
  if (!alike)
    std::stable_sort(out.begin(), out.end(), [&](const GradientSet& a, const GradientSet& b) {
      return a.ranks != b.ranks ? a.ranks < b.ranks : name(a) < name(b);
    });
  // Parameters of which only other graphs have gradients.
  const std::set<int> placed(order.begin(), order.end());
  std::map<std::pair<std::vector<int>, DType>, GradientSet> late;
  for (int slot : program.parameters) {
    const Share* share = share_of(program, slot);
    if (share == nullptr || share->reduce.empty() || placed.contains(slot) ||
        !trainable.contains(program.slot(slot).name))
      continue;
    GradientSet& set = late[{share->reduce, program.slot(slot).type.dtype}];
    set.ranks = share->reduce;
    set.parameters.push_back(slot);
  }
  for (auto& [key, set] : late) out.push_back(std::move(set));
  // What is summed nowhere, also where this graph has no gradient of it.
  std::map<std::pair<DType, bool>, GradientSet> alone;
  for (int slot : program.parameters) {
    const Share* share = share_of(program, slot);
    if ((share != nullptr && !share->reduce.empty()) ||
        !trainable.contains(program.slot(slot).name))
      continue;
    const bool sharded = share != nullptr && share->sharded;
    alone[{program.slot(slot).type.dtype, sharded}].parameters.push_back(slot);
  }
  for (auto& [key, set] : alone) out.push_back(std::move(set));
  return out;
}

std::vector<GradientSet> gradient_sets_of(const Program& first, const Program& program) {
  std::map<std::string, int> slots;
  for (int slot : program.parameters) slots[program.slot(slot).name] = slot;
  std::vector<GradientSet> out;
  for (const GradientSet& set : first.sets) {
    GradientSet& own = out.emplace_back();
    own.ranks = set.ranks;
    for (int slot : set.parameters)
      if (const auto it = slots.find(first.slot(slot).name); it != slots.end())
        own.parameters.push_back(it->second);
  }
  return out;
}

void mark_sums(Program& program) {
  if (program.embedded) return;
  for (Segment& segment : program.segments) {
    if (segment.kind == SegmentKind::forward) continue;
    std::map<int, size_t> done;  // parameter → instructions up to its last addend
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      if (segment.instrs[i].kind != InstrKind::accumulate) continue;
      done[segment.instrs[i].target] = outside(segment, i + 1);
    }
    size_t after = 0;
    for (size_t k = 0; k < program.sets.size(); ++k) {
      if (program.sets[k].ranks.empty()) continue;
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
    std::map<int, size_t> before;  // parameter → its last accumulation so far, plus one
    for (size_t i = 0; i < segment.instrs.size(); ++i) {
      const Instr& instr = segment.instrs[i];
      if (instr.kind != InstrKind::accumulate) continue;
      const size_t from = maker(segment, reads(instr)[0], i);
      const size_t last = std::exchange(before[instr.target], i + 1);
      if (from == i || from < last || !is_owned(instr)) continue;
      Instr& product = segment.instrs[from];
      if (is_one_of(product.op, kWriters) && block_at(segment, from) == block_at(segment, i))
        product.into = instr.target;
    }
  }
}

}  // namespace nns::lower
