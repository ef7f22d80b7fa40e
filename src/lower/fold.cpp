#include "lower/fold.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "graph/nest.h"

namespace nns::lower {

using graph::Graph;
using graph::Node;
using graph::Role;
using graph::ValueRef;

namespace {

// Of a row the first, which follows something else, the second, and the last.
constexpr size_t kKept = 3;

size_t at(int id) {
  return static_cast<size_t>(id);
}

// The outermost entry of a list that a module or a weight stands in: "layers.3" of
// "model.layers.3.mlp".
std::string_view block_path(std::string_view name) {
  for (size_t start = 0; start < name.size();) {
    const size_t stop = std::min(name.find('.', start), name.size());
    if (start > 0 && name.find_first_not_of("0123456789", start) >= stop)
      return name.substr(0, stop);
    start = stop + 1;
  }
  return {};
}

bool rests(const graph::Value& value) {
  return value.role == Role::parameter || value.role == Role::buffer;
}

}  // namespace

Fold::Fold(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
  find_blocks();
  find_forms();
}

void Fold::find_blocks() {
  const Graph& graph = *graph_;
  const int end = static_cast<int>(graph.nodes.size());
  number_.assign(graph.values.size(), -1);
  first_reader_.assign(graph.values.size(), -1);
  last_reader_.assign(graph.values.size(), -1);
  const auto read = [&](int value, int node) {
    if (first_reader_[at(value)] < 0) first_reader_[at(value)] = node;
    last_reader_[at(value)] = node;
  };
  int number = 0;
  for (const Node& node : graph.nodes) {
    const std::string_view path = block_path(node.module);
    const auto place = static_cast<size_t>(node.id);
    if (!path.empty()) {
      if (blocks_.empty() || blocks_.back().last != place || blocks_.back().path != path) {
        blocks_.push_back({place, place, std::string(path)});
        number = 0;
      }
      blocks_.back().last = place + 1;
    }
    for (int in : graph::inputs_of(node)) read(in, node.id);
    for (int out : node.outputs) number_[at(out)] = number++;
  }
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) { read(id, end); });
}

void Fold::find_forms() {
  const Graph& graph = *graph_;
  std::map<std::string_view, std::vector<size_t>> of_path;
  for (size_t b = 0; b < blocks_.size(); ++b) of_path[blocks_[b].path].push_back(b);
  for (const graph::Value& value : graph.values) {
    const int first = first_reader_[at(value.id)], last = last_reader_[at(value.id)];
    std::string_view path;
    if (rests(value))
      path = block_path(value.name);
    else if (value.role == Role::constant && first >= 0 && at(first) < graph.nodes.size())
      path = block_path(graph.nodes[at(first)].module);
    const auto found = of_path.find(path);
    if (found == of_path.end() || found->second.size() != 1) continue;
    Block& block = blocks_[found->second[0]];
    if (first < 0 || (at(first) >= block.first && at(last) < block.last))
      block.leaves.push_back(value.id);
  }
  std::map<std::string, int> known;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    const bool follows = b > 0 && blocks_[b - 1].last == block.first;
    const bool followed = b + 1 < blocks_.size() && blocks_[b + 1].first == block.last;
    block.form = known
                     .emplace(form_of(block, follows ? &blocks_[b - 1] : nullptr),
                              static_cast<int>(known.size()))
                     .first->second;
    block.closed = is_closed(block, followed ? &blocks_[b + 1] : nullptr);
  }
}

// Calls with their operands: of the block, of the block before by number, of the whole graph by id.
std::string Fold::form_of(const Block& block, const Block* before) const {
  const Graph& graph = *graph_;
  std::string text;
  const auto relative = [&](const std::string& name) {
    text.append(name, std::min(block.path.size(), name.size()));
  };
  const auto type_of = [&](int id) {
    text += to_string(graph.value({id}).type);
    text += graph.value({id}).requires_grad ? "'" : "";
  };
  const std::set<int> own(block.leaves.begin(), block.leaves.end());
  const auto name = [&](ValueRef ref) {
    if (ref.id < 0) {
      text += "nil,";
      return;
    }
    const graph::Value& value = graph.value(ref);
    const size_t place = at(value.producer);
    if (value.producer >= 0 && place >= block.first && place < block.last) {
      text += 'i';
      text += std::to_string(number_[at(ref.id)]);
      text += ',';
    } else if (value.producer >= 0 && before && place >= before->first && place < before->last) {
      text += fmt::format("e{}:", number_[at(ref.id)]);
      type_of(ref.id);
    } else if (own.contains(ref.id)) {
      text += "p";
      relative(value.name);
      text += ',';
    } else {
      text += fmt::format("g{},", ref.id);
    }
  };
  for (int id : block.leaves) {
    text += name_of(graph.value({id}).role);
    relative(graph.value({id}).name);
    type_of(id);
  }
  for (size_t n = block.first; n < block.last; ++n) {
    const Node& node = graph.nodes[n];
    text += "\n" + node.op + " ";
    relative(node.module);
    text += ' ' + std::to_string(node.ordinal) + (node.context.grad_enabled ? "g" : "-") +
            node.context.autocast + (node.context.recompute_region >= 0 ? " again" : "");
    for (const graph::NamedArg& arg : node.args) {
      text += ' ' + arg.name + '=';
      if (const auto* one = std::get_if<ValueRef>(&arg.value)) {
        name(*one);
      } else if (const auto* list = std::get_if<std::vector<ValueRef>>(&arg.value)) {
        for (ValueRef ref : *list) name(ref);
      } else {
        text += graph::to_text(arg.value);
      }
    }
    for (int out : node.outputs) {
      text += "->";
      type_of(out);
    }
  }
  for (const auto& [buffer, value] : graph.buffer_updates)
    if (own.contains(buffer)) {
      text += "\n";
      relative(graph.value({buffer}).name);
      text += '=';
      name({value});
    }
  return text;
}

bool Fold::is_closed(const Block& block, const Block* next) const {
  const Graph& graph = *graph_;
  const size_t end = next ? next->last : block.last;
  for (size_t n = block.first; n < block.last; ++n) {
    if (graph.nodes[n].context.recompute_region >= 0) return false;
    for (int out : graph.nodes[n].outputs)
      if (last_reader_[at(out)] >= 0 && at(last_reader_[at(out)]) >= end) return false;
  }
  for (const auto& [buffer, value] : graph.buffer_updates) {
    const int producer = graph.value({value}).producer;
    const bool made = producer >= 0 && at(producer) >= block.first && at(producer) < block.last;
    const bool own =
        std::find(block.leaves.begin(), block.leaves.end(), buffer) != block.leaves.end();
    if (made != own) return false;
  }
  return true;
}

// Whether two blocks that follow one another are equal and cut alike; groups of recomputation must
// lie inside of each.
bool Fold::equal(const plan::Plan& plan, const Block& a, const Block& b) const {
  if (a.last != b.first || a.form != b.form || !a.closed || !b.closed) return false;
  int least = -1, most = -1;  // groups of b, of a
  for (size_t n = b.first; n < b.last; ++n)
    if (const int group = plan.ops[n].recompute; group >= 0)
      least = least < 0 ? group : std::min(least, group);
  for (size_t n = a.first; n < a.last; ++n) most = std::max(most, plan.ops[n].recompute);
  if (least >= 0 && least <= most) return false;
  int offset = 0;
  for (size_t i = 0; i < a.last - a.first; ++i) {
    const plan::OpPlan &x = plan.ops[a.first + i], &y = plan.ops[b.first + i];
    if (x.stage != y.stage || x.cuts != y.cuts || x.devices != y.devices || x.hooks != y.hooks ||
        x.offload != y.offload)
      return false;
    if ((x.recompute < 0) != (y.recompute < 0)) return false;
    if (x.recompute < 0) continue;
    if (offset == 0) offset = y.recompute - x.recompute;
    if (y.recompute - x.recompute != offset) return false;
  }
  if (plan.zero.levels.empty() && plan.zero.whole.empty()) return true;
  for (size_t i = 0; i < a.leaves.size(); ++i) {
    const std::string &x = graph_->value({a.leaves[i]}).name,
                      &y = graph_->value({b.leaves[i]}).name;
    if (plan.zero.of(x) != plan.zero.of(y) ||
        plan.zero.whole.contains(x) != plan.zero.whole.contains(y))
      return false;
  }
  return true;
}

std::vector<Fold::Row> Fold::rows(const plan::Plan& plan) const {
  std::vector<Row> out;
  for (size_t b = 0; b < blocks_.size();) {
    size_t end = b + 1;
    while (end < blocks_.size() && equal(plan, blocks_[end - 1], blocks_[end])) ++end;
    if (end - b > kKept) out.push_back({b, end - b});
    b = end;
  }
  return out;
}

namespace {

// Whether two costs are of the same parts of the same ranks.
bool alike(const std::vector<ClassCost>& a, const std::vector<ClassCost>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    const auto same_key = [](const auto& one, const auto& other) {
      return one.first == other.first;
    };
    return x.ranks == y.ranks && x.memory.sequence == y.memory.sequence &&
           std::equal(x.parts.begin(), x.parts.end(), y.parts.begin(), y.parts.end(), same_key);
  });
}

// Adds so many times what `more` is above `base`.
void add_times(ClassCost& a, const ClassCost& base, const ClassCost& more, int64_t times) {
  const auto add = [&]<class T>(T& to, const T& from, const T& by) {
    to += static_cast<T>(times) * (by - from);
  };
  for (auto& [key, seconds] : a.parts) {
    const Seconds &x = base.parts.at(key), &y = more.parts.at(key);
    add(seconds.work, x.work, y.work);
    add(seconds.communication, x.communication, y.communication);
  }
  add(a.once.sum, base.once.sum, more.once.sum);
  add(a.once.update, base.once.update, more.once.update);
  add(a.updated, base.updated, more.updated);
  MemoryParts& memory = a.memory;
  add(memory.parameters, base.memory.parameters, more.memory.parameters);
  add(memory.gradients, base.memory.gradients, more.memory.gradients);
  add(memory.buffers, base.memory.buffers, more.memory.buffers);
  add(memory.constants, base.memory.constants, more.memory.constants);
  add(memory.casts, base.memory.casts, more.memory.casts);
  for (auto& [key, part] : memory.parts) {
    const MemoryPart &x = base.memory.parts.at(key), &y = more.memory.parts.at(key);
    add(part.net, x.net, y.net);
    add(part.saved, x.saved, y.saved);
    add(part.host, x.host, y.host);
    for (auto& [node, top] : part.tops) {
      const auto there = y.tops.find(node);
      if (there != y.tops.end()) add(top, x.tops.at(node), there->second);
    }
  }
}

}  // namespace

StepCost Fold::simulate(const plan::Plan& plan, Options options, const cost::Hardware& on,
                        const StepSettings& settings) const {
  options.priced = true;
  const auto whole = [&] {
    options.plan = std::make_shared<const plan::Plan>(plan);
    return lower::simulate(Skeleton(graph_, options), plan, on, settings);
  };
  if (plan.ops.size() != graph_->nodes.size()) return whole();
  const std::vector<Row> rows = this->rows(plan);
  size_t spared = 0;
  for (const Row& row : rows)
    spared += (row.count - kKept) * (blocks_[row.first].last - blocks_[row.first].first);
  if (2 * spared < graph_->nodes.size()) return whole();
  plan::Plan bare = plan;  // without calls
  bare.ops.clear();
  const auto costs = [&](const std::vector<size_t>& keep) {
    const Folded folded = fold(plan, bare, rows, keep);
    options.plan = folded.plan;
    auto classes = class_costs(Skeleton(folded.graph, options), on, settings);
    for (ClassCost& of : classes) {
      of.spent.clear();
      for (auto& [key, part] : of.memory.parts) {
        std::map<int, int64_t> tops;
        for (const auto& [node, top] : part.tops)
          tops.emplace(node < 0 ? node : folded.nodes[at(node)], top);
        part.tops = std::move(tops);
      }
    }
    return classes;
  };
  const std::vector<ClassCost> base = costs(std::vector<size_t>(rows.size(), kKept));
  std::vector<ClassCost> sum = base;
  std::set<size_t> counts;
  for (const Row& row : rows) counts.insert(row.count);
  for (size_t count : counts) {
    std::vector<size_t> keep;
    for (const Row& row : rows) keep.push_back(row.count == count ? kKept + 1 : kKept);
    const std::vector<ClassCost> more = costs(keep);
    if (!alike(base, more)) return whole();
    for (size_t c = 0; c < sum.size(); ++c)
      add_times(sum[c], base[c], more[c], static_cast<int64_t>(count - kKept));
  }
  return step_cost(sum, plan, settings);
}

}  // namespace nns::lower
