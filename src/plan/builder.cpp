#include "plan/builder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "operators/rest.h"

namespace nns::plan {

using annotate::Binding;
using annotate::Place;

Builder::Builder(std::shared_ptr<const graph::Graph> graph, int plan_ngpus, int runtime_ngpus)
    : graph_(std::move(graph)), ops_(graph_->nodes.size()), bindings_(graph_->nodes.size()) {
  if (plan_ngpus < 1 || runtime_ngpus < 1 || runtime_ngpus % plan_ngpus != 0)
    throw Error(
        ErrorKind::usage,
        fmt::format("[plan.devices] compute_config.plan_ngpus = {}, runtime_ngpus = {}; expected "
                    "runtime_ngpus to be a multiple of plan_ngpus",
                    plan_ngpus, runtime_ngpus),
        "a plan spans plan_ngpus devices and is repeated runtime_ngpus / plan_ngpus times");
  plan_.plan_ngpus = plan_ngpus;
  plan_.runtime_ngpus = runtime_ngpus;
  plan_.structure = graph::structure_hash(*graph_);
  std::vector<int> all(static_cast<size_t>(plan_ngpus));
  std::iota(all.begin(), all.end(), 0);
  plan_.stage_devices = {all};
}

Builder::Op& Builder::op(int id) {
  if (id < 0 || static_cast<size_t>(id) >= ops_.size())
    fail(ErrorKind::plan, "[plan.node] node {}; expected 0 to {}", id, ops_.size() - 1);
  return ops_[static_cast<size_t>(id)];
}

OpKey Builder::key(int id) const {
  return {node(id).module, node(id).op, node(id).ordinal};
}

const std::optional<Binding>& Builder::binding(int id) const {
  auto& known = bindings_.at(static_cast<size_t>(id));
  if (!known) known = operators::bind(operators::CallView(*graph_, node(id)));
  return *known;
}

std::vector<Place> Builder::choices(int id) const {
  const auto& b = binding(id);
  return b ? b->transform_space() : std::vector<Place>{};
}

namespace {

// What is left of a call behind these cuts.
operators::Rest rest_of(const graph::Graph& graph, const graph::Node& node,
                        const std::vector<Cut>& cuts) {
  operators::Rest rest(graph, node);
  for (const Cut& cut : cuts)
    if (cut.input >= 0)
      rest.cut(rest.at(cut.input, cut.dim)->split(cut.input, cut.dim, cut.parts, cut.uneven),
               cut.parts, !cut.uneven);
  return rest;
}

// Whether cuts have left one of an identifier in each part.
bool used_up(const Binding& binding, const std::map<std::string, int>& parts,
             const std::optional<std::string>& identifier) {
  if (!identifier) return false;
  const auto found = parts.find(*identifier);
  return found != parts.end() && found->second > 1 && binding.length(*identifier) == found->second;
}

}  // namespace

std::optional<std::string> Builder::refusal(int id, int input, int dim, int parts, bool uneven,
                                            bool in_turns,
                                            const std::vector<int64_t>& sizes) const {
  const auto& b = binding(id);
  const Op& known = ops_.at(static_cast<size_t>(id));
  if (b && sizes.empty() && parts > 1 && used_up(*b, known.parts, b->identifier(input, dim))) {
    operators::Rest rest = rest_of(*graph_, node(id), known.cuts);
    const Binding* part = rest.at(input, dim);
    const auto inner = part == nullptr ? std::nullopt : part->identifier(input, dim);
    if (inner && rest.turns() > 0 && !in_turns)
      return part->refusal(input, dim, parts * rest.parts(*inner));
  }
  if (!b) return "the operator has no annotation, so it can only be replicated";
  const auto identifier = b->identifier(input, dim);
  if (!identifier) return b->refusal(input, dim, parts, uneven);
  const auto& done = ops_.at(static_cast<size_t>(id)).parts;
  const auto before = done.find(*identifier);
  if (ops_[static_cast<size_t>(id)].sized.contains(*identifier))
    return fmt::format("'{}' is cut into parts of given sizes already", *identifier);
  if (!sizes.empty()) {
    if (static_cast<int>(sizes.size()) != parts)
      return fmt::format("{} sizes are given for {} parts", sizes.size(), parts);
    if (before != done.end())
      return fmt::format("'{}' is cut already; sizes are given with the first cut", *identifier);
    if (in_turns) return "given sizes are for parts on devices of their own";
    return b->refusal(input, dim, sizes);
  }
  // Uneven parts of parts have no layout.
  uneven = uneven && before == done.end();
  auto why =
      b->refusal(input, dim,
                 static_cast<int64_t>(parts) * (before == done.end() ? 1 : before->second), uneven);
  if (!why && in_turns &&
      operators::is_assisted(operators::CallView(*graph_, node(id)),
                             b->split(input, dim, parts, uneven)))
    why = "its parts need each other's results, so they cannot run in turns";
  return why;
}

std::optional<annotate::Split> Builder::split(int id, int input, int dim, int parts) const {
  if (refusal(id, input, dim, parts)) return std::nullopt;
  const auto& b = *binding(id);
  const Op& known = ops_.at(static_cast<size_t>(id));
  if (parts > 1 && used_up(b, known.parts, b.identifier(input, dim)))
    return rest_of(*graph_, node(id), known.cuts).at(input, dim)->split(input, dim, parts);
  return b.split(input, dim, parts);
}

void Builder::partition(int id, int input, int dim, int parts, bool uneven,
                        std::vector<int64_t> sizes) {
  Op& o = op(id);
  if (const auto why = refusal(id, input, dim, parts, uneven, false, sizes)) {
    std::vector<std::string> legal;
    for (const Place& p : choices(id))
      legal.push_back(fmt::format("input {} dim {} (length {})", p.input, p.dim,
                                  binding(id)->length(*binding(id)->identifier(p.input, p.dim))));
    throw Error(ErrorKind::plan,
                fmt::format("[plan.partition] {}: input {} dim {} into {}: {}", to_string(key(id)),
                            input, dim, parts, *why),
                legal.empty() ? "replicate it" : fmt::format("legal: {}", fmt::join(legal, "; ")));
  }
  const auto identifier = *binding(id)->identifier(input, dim);
  const bool inside = parts > 1 && used_up(*binding(id), o.parts, identifier);
  auto& all = o.parts[identifier];
  if (!inside) all = (all == 0 ? 1 : all) * parts;
  if (dim < 0) {
    const auto operands = operators::CallView(*graph_, node(id)).operands();
    dim += static_cast<int>(operands.at(static_cast<size_t>(input))->shape.size());
  }
  const bool divides = binding(id)->length(identifier) % all == 0;
  if (!sizes.empty()) o.sized.insert(identifier);
  o.cuts.push_back({input, dim, parts, !divides || !sizes.empty(), std::move(sizes)});
  o.planned = true;
}

void Builder::replicate(int id, int parts) {
  Op& o = op(id);
  if (parts < 1) fail(ErrorKind::plan, "[plan.replicate] {}: {} parts", to_string(key(id)), parts);
  o.cuts.push_back({-1, 0, parts});
  o.planned = true;
}

void Builder::assign(int id, std::vector<int> devices) {
  Op& o = op(id);
  int parts = 1;
  for (const Cut& cut : o.cuts) parts *= cut.parts;
  if (static_cast<size_t>(parts) != devices.size())
    fail(ErrorKind::plan, "[plan.assign] {}: {} parts on {} devices; expected one device a part",
         to_string(key(id)), parts, devices.size());
  for (int d : devices)
    if (d < 0 || d >= plan_.plan_ngpus)
      fail(ErrorKind::plan, "[plan.assign] {}: device {}; expected 0 to {}", to_string(key(id)), d,
           plan_.plan_ngpus - 1);
  o.devices = std::move(devices);
  o.planned = true;
}

void Builder::stage(const std::vector<int>& first_nodes, std::vector<std::vector<int>> devices) {
  if (devices.size() != first_nodes.size() + 1)
    fail(ErrorKind::plan,
         "[plan.stage] {} stages on {} lists of devices; expected one list a stage",
         first_nodes.size() + 1, devices.size());
  for (size_t i = 0; i < first_nodes.size(); ++i) {
    op(first_nodes[i]);
    if (first_nodes[i] <= (i == 0 ? 0 : first_nodes[i - 1]))
      fail(ErrorKind::plan,
           "[plan.stage] stage {} starts at node {}; expected ascending nodes, none empty", i + 1,
           first_nodes[i]);
  }
  for (size_t s = 0; s < devices.size(); ++s) {
    if (devices[s].empty()) fail(ErrorKind::plan, "[plan.stage] stage {} has no device", s);
    for (int d : devices[s])
      if (d < 0 || d >= plan_.plan_ngpus)
        fail(ErrorKind::plan, "[plan.stage] stage {}: device {}; expected 0 to {}", s, d,
             plan_.plan_ngpus - 1);
  }
  size_t s = 0;
  for (size_t n = 0; n < ops_.size(); ++n) {
    while (s < first_nodes.size() && static_cast<int>(n) >= first_nodes[s]) ++s;
    ops_[n].stage = static_cast<int>(s);
  }
  plan_.stages = static_cast<int>(devices.size());
  plan_.stage_devices = std::move(devices);
}

void Builder::recompute(const std::vector<int>& nodes) {
  if (nodes.empty()) fail(ErrorKind::plan, "[plan.recompute] no node; expected one at least");
  for (int n : nodes) {
    if (op(n).recompute >= 0)
      throw Error(
          ErrorKind::plan,
          fmt::format("[plan.recompute] {} is of group {} already", to_string(key(n)),
                      op(n).recompute),
          "a group is recomputed as a whole: make larger groups or smaller ones, not nested ones");
    op(n).recompute = recompute_groups_;
  }
  for (int n : nodes)
    if (op(n).stage != op(nodes[0]).stage)
      fail(ErrorKind::plan,
           "[plan.recompute] {} and {} are in different stages; expected one stage",
           to_string(key(nodes[0])), to_string(key(n)));
  ++recompute_groups_;
}

void Builder::offload(const std::vector<int>& nodes) {
  for (int n : nodes) op(n).offload = true;
}

void Builder::schedule(const std::string& name, int micro_batches, int chunks,
                       std::vector<std::string> orders) {
  plan_.schedule = name;
  plan_.orders = std::move(orders);
  plan_.micro_batches = micro_batches;
  plan_.chunks = chunks;
}

Plan Builder::finish(const std::string& policy) {
  plan_.policy = policy;
  plan_.ops.clear();
  std::set<int> used;
  for (size_t n = 0; n < ops_.size(); ++n) {
    Op& o = ops_[n];
    const int id = static_cast<int>(n);
    const auto& stage = plan_.stage_devices[static_cast<size_t>(o.stage)];
    int parts = 1;
    for (const Cut& cut : o.cuts) parts *= cut.parts;
    if (!o.planned)
      throw Error(ErrorKind::plan,
                  fmt::format("[plan.finish] {} ({}) has no device", to_string(key(id)),
                              short_form(node(id).loc)),
                  "partition or replicate every operator; replicate_rest does it for those left");
    if (o.devices.empty()) {
      if (static_cast<size_t>(parts) != stage.size())
        fail(ErrorKind::plan,
             "[plan.finish] {}: {} parts in stage {} of {} devices; expected one part a "
             "device, or assign",
             to_string(key(id)), parts, o.stage, stage.size());
      o.devices = stage;
    }
    for (int d : o.devices) {
      used.insert(d);
      if (std::find(stage.begin(), stage.end(), d) == stage.end())
        fail(ErrorKind::plan, "[plan.finish] {}: device {} is not of stage {} ({})",
             to_string(key(id)), d, o.stage, fmt::join(stage, ","));
    }
    plan_.ops.push_back({key(id), o.cuts, o.devices, o.stage, o.recompute, o.hooks, o.offload});
  }
  for (int d = 0; d < plan_.plan_ngpus; ++d)
    if (!used.contains(d) && !ops_.empty())
      throw Error(ErrorKind::plan,
                  fmt::format("[plan.finish] device {} of {} has no operator", d, plan_.plan_ngpus),
                  "lower compute_config.plan_ngpus, or give every device work");
  check_zero(plan_);
  return plan_;
}

}  // namespace nns::plan
