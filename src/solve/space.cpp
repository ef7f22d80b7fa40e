#include "solve/space.h"

#include <algorithm>

#include "base/error.h"
#include "graph/nest.h"

namespace nns::solve {

using graph::Graph;
using graph::Node;
using graph::Role;

namespace {

size_t at(int id) {
  return static_cast<size_t>(id);
}

// Operator, arguments and types of a call: calls with one text have the same pieces. `type_of`
// numbers the type of a value.
template <class TypeOf>
std::string text_of(const Node& node, int constraint, TypeOf type_of) {
  std::string text = node.op + (node.context.grad_enabled ? "|" : "|-");
  text += std::to_string(constraint);
  const auto tensor = [&](graph::ValueRef ref) {
    text += ref.id < 0 ? "nil" : std::to_string(type_of(ref.id));
    text += ';';
  };
  for (const graph::NamedArg& arg : node.args) {
    text += arg.name;
    text += '=';
    if (const auto* one = std::get_if<graph::ValueRef>(&arg.value)) {
      tensor(*one);
    } else if (const auto* list = std::get_if<std::vector<graph::ValueRef>>(&arg.value)) {
      for (graph::ValueRef ref : *list) tensor(ref);
    } else {
      text += graph::to_text(arg.value) + ";";
    }
  }
  return text;
}

// Cuts of a call that its placement can have, after the whole call; those that lay all tensors
// alike once.
std::vector<Candidate> candidates_of(const Graph& graph, const Node& node, int devices,
                                     const plan::Builder& builder) {
  std::vector<Candidate> out;
  std::vector<int> all;
  for (int d = 0; d < devices; ++d) all.push_back(d);
  const auto add = [&](int input, int dim) {
    plan::OpPlan op;
    op.key = {node.module, node.op, node.ordinal};
    op.cuts = {{input, dim, devices}};
    op.devices = all;
    Candidate candidate{input, dim, {}, {}, lower::place(graph, node, op)};
    for (const auto& use : candidate.placed.inputs)
      candidate.inputs.push_back(code_of(use.layout, !use.partial.empty() && use.partial[0]));
    for (const auto& layout : candidate.placed.outputs)
      candidate.outputs.push_back(code_of(layout, false));
    candidate.places = {{input, dim}};
    for (Candidate& known : out)
      if (known.inputs == candidate.inputs && known.outputs == candidate.outputs) {
        known.places.emplace_back(input, dim);
        return;
      }
    out.push_back(std::move(candidate));
  };
  add(-1, 0);
  if (devices == 1) return out;
  for (const annotate::Place& place : builder.choices(node.id)) {
    const auto split = builder.split(node.id, place.input, place.dim, devices);
    if (!split) continue;
    const auto one_cut = [](const std::vector<annotate::TensorSplit>& side) {
      return std::all_of(side.begin(), side.end(), [](const annotate::TensorSplit& t) {
        return t.axes.size() <= 1 && (t.axes.empty() || t.axes[0] < kCodes - kCut);
      });
    };
    if (one_cut(split->inputs) && one_cut(split->outputs)) add(place.input, place.dim);
  }
  return out;
}

}  // namespace

Space::Space(const Problem& problem) : problem_(problem) {
  const Graph& graph = *problem_.graph;
  for (const Node& node : graph.nodes)
    if (node.context.recompute_region >= 0)
      throw Error(ErrorKind::model,
                  fmt::format("[solve.recompute] {} {} ({}) runs again in backward; expected a "
                              "model whose regions are not given",
                              node.module, node.op, short_form(node.loc)),
                  "autodist does not price regions of the model: take nnscaler.recompute out, or "
                  "use another policy");
  type_of_.assign(graph.values.size(), -1);
  for (const Node& node : graph.nodes) inputs_.push_back(graph::inputs_of(node));
  find_live();
  find_kinds();
  find_gradients();
  find_leaves();
  find_steps();
  find_segments();
  find_alive();
  find_segment_ids();
}

int Space::type_of(int value) {
  int& known = type_of_[at(value)];
  if (known >= 0) return known;
  const TensorType& type = problem_.graph->value({value}).type;
  const auto [place, fresh] =
      type_ids_.try_emplace({type.dtype, type.shape}, static_cast<int>(types_.size()));
  if (fresh) types_.push_back(type);
  return known = place->second;
}

// Calls whose results somebody reads in the end.
void Space::find_live() {
  const Graph& graph = *problem_.graph;
  uses_.assign(graph.values.size(), 0);
  live_.assign(graph.nodes.size(), false);
  asked_.resize(graph.nodes.size());
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) { ++uses_[at(id)]; });
  std::vector<bool> content(graph.values.size(), false);
  for (const auto& [buffer, value] : graph.buffer_updates) content[at(value)] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    for (int out : node.outputs) {
      const bool used = uses_[at(out)] > 0 || content[at(out)];
      asked_[n].used.push_back(used);
      live_[n] = live_[n] || used;
    }
    asked_[n].grads.assign(node.outputs.size(), false);
    for (int in : inputs_[n])
      if (live_[n] || rests(in)) ++uses_[at(in)];
  }
}

bool Space::rests(int value) const {
  const Role role = problem_.graph->value({value}).role;
  return role == Role::parameter || role == Role::buffer;
}

namespace {

// Takes out the candidates that a constraint does not allow.
void constrain(Kind& kind, const Constraint& constraint, const Graph& graph) {
  std::string legal;
  for (const Candidate& c : kind.candidates)
    for (const auto& [input, dim] : c.places)
      if (input >= 0) legal += fmt::format(" {},{}", input, dim);
  std::erase_if(kind.candidates, [&](const Candidate& c) {
    if (c.input < 0) return !constraint.replica;
    return std::find_first_of(c.places.begin(), c.places.end(), constraint.allowed.begin(),
                              constraint.allowed.end()) == c.places.end();
  });
  if (!kind.candidates.empty()) return;
  const Node& node = graph.nodes[at(kind.node)];
  throw Error(
      ErrorKind::usage,
      fmt::format("[solve.constraint] the constraint {} leaves no way to run {} {} ({}); it "
                  "can be cut at{}",
                  to_string(constraint), node.module, node.op, short_form(node.loc),
                  legal.empty() ? " no place" : legal),
      "allow one of these places, or replica_allowed: true");
}

}  // namespace

void Space::find_kinds() {
  const Graph& graph = *problem_.graph;
  const plan::Builder builder(problem_.graph, problem_.width(),
                              problem_.width() * problem_.units());
  structure_ = builder.structure();
  const std::vector<int> constrained = match(problem_.constraints, graph);
  std::unordered_map<std::string, int> known;
  kind_.assign(graph.nodes.size(), -1);
  readers_.resize(graph.values.size());
  for (const Node& node : graph.nodes) {
    if (!live_[at(node.id)]) continue;
    const int limit = constrained[at(node.id)];
    const auto [entry, fresh] =
        known.emplace(text_of(node, limit, [this](int value) { return type_of(value); }),
                      static_cast<int>(kinds_.size()));
    if (fresh) {
      kinds_.push_back({node.id, candidates_of(graph, node, problem_.width(), builder)});
      if (limit >= 0 && problem_.width() > 1)
        constrain(kinds_.back(), problem_.constraints[at(limit)], graph);
    }
    kind_[at(node.id)] = entry->second;
    const auto& inputs = inputs_[at(node.id)];
    for (size_t i = 0; i < inputs.size(); ++i) {
      uint16_t codes = 0;
      for (const Candidate& c : kinds_[at(entry->second)].candidates)
        codes |= static_cast<uint16_t>(1u << c.inputs[i]);
      readers_[at(inputs[i])].push_back({node.id, codes});
    }
  }
  const int end = static_cast<int>(graph.nodes.size());
  for (const graph::Nest& nest : graph.outputs)
    graph::for_each_value(nest, [&](int id) { readers_[at(id)].push_back({end, 1u << kWhole}); });
  for (std::vector<Reader>& readers : readers_)  // each tells of all from it on
    for (size_t i = readers.size(); i-- > 1;) readers[i - 1].codes |= readers[i].codes;
}

uint16_t Space::codes_after(int value, int node) const {
  const auto& readers = readers_[at(value)];
  const auto next = std::upper_bound(readers.begin(), readers.end(), node,
                                     [](int n, const Reader& reader) { return n < reader.node; });
  return next == readers.end() ? uint16_t{0} : next->codes;
}

// Which values require gradients, and get one: as the tape of a whole call finds it.
void Space::find_gradients() {
  const Graph& graph = *problem_.graph;
  std::vector<std::pair<const Asked*, const CallPiece*>> latest(kinds_.size());
  const auto whole = [&](int kind, const Asked& asked) -> const CallPiece& {
    auto& [of, piece] = latest[at(kind)];  // layers ask alike
    if (of == nullptr || *of != asked) {
      piece = &make(kind, 0, asked);
      of = &asked;
    }
    return *piece;
  };
  requires_.assign(graph.values.size(), false);
  gets_.assign(graph.values.size(), false);
  for (int id : graph.parameters) requires_[at(id)] = graph.value({id}).requires_grad;
  for (const Node& node : graph.nodes) {
    if (!live_[at(node.id)]) continue;
    Asked& asked = asked_[at(node.id)];
    const auto& inputs = inputs_[at(node.id)];
    for (int in : inputs) asked.needs.push_back(requires_[at(in)]);
    asked.strided.assign(inputs.size(), false);
    const CallPiece& piece = whole(kind_[at(node.id)], asked);
    for (size_t k = 0; k < node.outputs.size(); ++k)
      requires_[at(node.outputs[k])] = piece.results[k].requires_grad;
  }
  if (!graph.training || graph.outputs.empty()) return;
  std::fill(latest.begin(), latest.end(), std::pair(nullptr, nullptr));  // of what changes now
  if (const auto* loss = std::get_if<graph::ValueRef>(&graph.outputs[0].node))
    gets_[at(loss->id)] = requires_[at(loss->id)];
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (!live_[n]) continue;
    bool any = false;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      asked_[n].grads[k] = gets_[at(node.outputs[k])];
      any = any || asked_[n].grads[k];
    }
    if (!any) continue;
    const CallPiece& piece = whole(kind_[n], asked_[n]);
    const auto& inputs = inputs_[n];
    for (size_t i = 0; i < inputs.size(); ++i)
      if (piece.gradients[i] > 0) gets_[at(inputs[i])] = true;
  }
}

void Space::find_leaves() {
  const Graph& graph = *problem_.graph;
  leaf_of_.assign(graph.values.size(), -1);
  for (const auto& [buffer, value] : graph.buffer_updates) {
    // The buffer of a call that reads it is as that call has it; else it is alive until it is
    // written.
    const int producer = graph.value({value}).producer;
    const auto inputs =
        producer < 0 ? std::vector<int>{} : graph::inputs_of(graph.nodes[at(producer)]);
    const bool own = std::find(inputs.begin(), inputs.end(), buffer) != inputs.end();
    if (uses_[at(buffer)] > 0 && !(own && uses_[at(buffer)] == 1)) ++uses_[at(buffer)];
  }
  for (const graph::Value& value : graph.values) {
    if (value.producer >= 0) continue;
    const bool rests = this->rests(value.id);
    const Leaf leaf{type_of(value.id),
                    rests,
                    value.role == Role::parameter,
                    gets_[at(value.id)],
                    requires_[at(value.id)],
                    uses_[at(value.id)] == 1};
    if (rests && uses_[at(value.id)] == 0) ++unread_[leaf];
    if (value.role == Role::constant) constants_ += bytes_of(value.type);
    if (uses_[at(value.id)] == 0) continue;
    const auto known = std::find(leaves_.begin(), leaves_.end(), leaf);
    leaf_of_[at(value.id)] = static_cast<int>(known - leaves_.begin());
    if (known == leaves_.end()) leaves_.push_back(leaf);
  }
}

}  // namespace nns::solve
