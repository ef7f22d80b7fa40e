// Text, JSON and matching of plans.
#include "plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nns::plan {
namespace {

using json = nlohmann::ordered_json;

constexpr int kFormat = 2;

std::string text_of(const Cut& s) {
  if (s.input < 0) return fmt::format("replicate {}", s.parts);
  if (!s.sizes.empty())
    return fmt::format("input {} dim {} into sizes {}", s.input, s.dim, fmt::join(s.sizes, ","));
  return fmt::format("input {} dim {} into {}{}", s.input, s.dim, s.parts,
                     s.uneven ? " uneven" : "");
}

// Of what rests in shards.
std::string text_of(const Zero& zero) {
  static constexpr const char* names[] = {"weights replicated", "optimizer state sharded",
                                          "gradients and optimizer state sharded",
                                          "weights sharded"};
  std::string out = names[zero.level];
  if (zero.groups > 1) out += fmt::format(" in {} groups", zero.groups);
  if (zero.scatter) out += ", sums scattered";
  if (!zero.whole.empty()) out += fmt::format(", {} undivided", zero.whole.size());
  for (const auto& [name, level] : zero.levels) out += fmt::format(", {} zero {}", name, level);
  return out;
}

std::string text_of(const OpPlan& op) {
  std::vector<std::string> cuts;
  for (const Cut& s : op.cuts) cuts.push_back(text_of(s));
  std::string hooks;
  for (const auto& [name, value] :
       {std::pair{"before", op.hooks.before}, {"after", op.hooks.after}, {"meta", op.hooks.meta}})
    if (!value.empty()) hooks += fmt::format(", {} {}", name, value);
  return fmt::format("stage {}  {}{}{}: {} on {}{}", op.stage, to_string(op.key),
                     op.recompute < 0 ? "" : fmt::format(" recompute {}", op.recompute),
                     op.offload ? " offload" : "",
                     cuts.empty() ? "whole" : fmt::format("{}", fmt::join(cuts, ", ")),
                     fmt::join(op.devices, ","), hooks);
}

json json_of(const Plan& plan) {
  json ops = json::array();
  for (const OpPlan& op : plan.ops) {
    json cuts = json::array();
    for (const Cut& s : op.cuts) {
      cuts.push_back({{"input", s.input}, {"dim", s.dim}, {"parts", s.parts}});
      if (s.uneven) cuts.back()["uneven"] = true;
      if (!s.sizes.empty()) cuts.back()["sizes"] = s.sizes;
    }
    ops.push_back({{"module", op.key.module},
                   {"op", op.key.op},
                   {"ordinal", op.key.ordinal},
                   {"steps", cuts},
                   {"devices", op.devices},
                   {"stage", op.stage},
                   {"recompute", op.recompute}});
    if (op.offload) ops.back()["offload"] = true;
    if (op.hooks != Hooks{})
      ops.back()["hooks"] = {
          {"before", op.hooks.before}, {"after", op.hooks.after}, {"meta", op.hooks.meta}};
  }
  return {{"format", kFormat},
          {"kind", "nnscaler.plan"},
          {"policy", plan.policy},
          {"plan_ngpus", plan.plan_ngpus},
          {"runtime_ngpus", plan.runtime_ngpus},
          {"stages", plan.stages},
          {"stage_devices", plan.stage_devices},
          {"schedule", plan.schedule},
          {"micro_batches", plan.micro_batches},
          {"chunks", plan.chunks},
          {"orders", plan.orders},
          {"zero",
           {{"level", plan.zero.level},
            {"groups", plan.zero.groups},
            {"scatter", plan.zero.scatter},
            {"levels", plan.zero.levels},
            {"whole", plan.zero.whole}}},
          {"strict", plan.strict},
          {"structure", hex(plan.structure)},
          {"ops", ops}};
}

OpKey key_of(const graph::Node& node) {
  return {node.module, node.op, node.ordinal};
}

}  // namespace

std::string to_string(const OpKey& key) {
  return fmt::format("{} {}#{}", key.module.empty() ? "(root)" : key.module, key.op, key.ordinal);
}

int OpPlan::parts() const {
  int n = 1;
  for (const Cut& s : cuts) n *= s.parts;
  return n;
}

int OpPlan::turns() const {
  size_t k = 1;
  while (k < devices.size() && devices[k] == devices[0]) ++k;
  return static_cast<int>(k);
}

std::string to_text(const Plan& plan) {
  std::string out = fmt::format(
      "plan '{}' for graph {}: {} devices, {} ranks ({} units), {} stages, schedule {}, "
      "{} micro-batches, {}{}\n",
      plan.policy, hex(plan.structure), plan.plan_ngpus, plan.runtime_ngpus, plan.units(),
      plan.stages, plan.schedule, plan.micro_batches, text_of(plan.zero),
      plan.strict ? ", strict" : "");
  for (size_t r = 0; r < plan.orders.size(); ++r)
    out += fmt::format("rank {}: {}\n", r, plan.orders[r]);
  for (const OpPlan& op : plan.ops) out += text_of(op) + "\n";
  return out;
}

std::string to_json(const Plan& plan) {
  return json_of(plan).dump(1) + "\n";
}

uint64_t hash(const Plan& plan) {
  return hash_bytes(json_of(plan).dump());
}

namespace {

void check_devices(const std::vector<int>& devices, int count, const std::string& what) {
  if (devices.empty()) fail(ErrorKind::state, "[plan.load] {} has no device", what);
  for (int d : devices)
    if (d < 0 || d >= count)
      fail(ErrorKind::state, "[plan.load] {}: device {}; expected 0 to {}", what, d, count - 1);
}

// Plans of format 1 say only whether weights rest in shards.
Zero zero_from(const json& j) {
  Zero zero;
  if (j.at("format") == 1) {
    zero.level = j.at("weights") == "sharded" ? Zero::weights : Zero::none;
    return zero;
  }
  const json& z = j.at("zero");
  zero.level = z.at("level");
  zero.groups = z.at("groups");
  zero.scatter = z.at("scatter");
  zero.levels = z.at("levels").get<std::map<std::string, int>>();
  zero.whole = z.at("whole").get<std::set<std::string>>();
  return zero;
}

OpPlan op_from(const json& o, const Plan& plan) {
  OpPlan op;
  op.key = {o.at("module"), o.at("op"), o.at("ordinal")};
  for (const json& s : o.at("steps")) {
    op.cuts.push_back({s.at("input"), s.at("dim"), s.at("parts"), s.value("uneven", false),
                       s.value("sizes", std::vector<int64_t>{})});
    const auto& sizes = op.cuts.back().sizes;
    if (!sizes.empty() && static_cast<int>(sizes.size()) != op.cuts.back().parts)
      fail(ErrorKind::state, "[plan.load] {}: {} sizes of {} parts", to_string(op.key),
           sizes.size(), op.cuts.back().parts);
    if (op.cuts.back().parts < 1)
      fail(ErrorKind::state, "[plan.load] {}: {} parts", to_string(op.key), op.cuts.back().parts);
  }
  op.devices = o.at("devices").get<std::vector<int>>();
  op.stage = o.at("stage");
  op.recompute = o.at("recompute");
  op.offload = o.value("offload", false);
  if (const auto hooks = o.find("hooks"); hooks != o.end())
    op.hooks = {hooks->at("before"), hooks->at("after"), hooks->at("meta")};
  check_devices(op.devices, plan.plan_ngpus, to_string(op.key));
  if (static_cast<size_t>(op.parts()) != op.devices.size())
    fail(ErrorKind::state, "[plan.load] {}: {} parts on {} devices", to_string(op.key), op.parts(),
         op.devices.size());
  if (op.stage < 0 || op.stage >= plan.stages)
    fail(ErrorKind::state, "[plan.load] {}: stage {} of {}", to_string(op.key), op.stage,
         plan.stages);
  return op;
}

}  // namespace

Plan from_json(std::string_view text) {
  try {
    const json j = json::parse(text);
    if (j.at("kind") != "nnscaler.plan")
      fail(ErrorKind::state, "[plan.load] not a plan: kind is {}", j.at("kind").dump());
    if (j.at("format").get<int>() > kFormat)
      throw Error(ErrorKind::state,
                  fmt::format("[plan.load] the plan has format {}; this version reads up to {}",
                              j.at("format").get<int>(), kFormat),
                  "use a newer nnscaler");
    Plan plan;
    plan.policy = j.at("policy");
    plan.plan_ngpus = j.at("plan_ngpus");
    plan.runtime_ngpus = j.at("runtime_ngpus");
    plan.stages = j.at("stages");
    plan.stage_devices = j.at("stage_devices").get<std::vector<std::vector<int>>>();
    plan.schedule = j.at("schedule");
    plan.micro_batches = j.at("micro_batches");
    plan.chunks = j.at("chunks");
    plan.orders = j.value("orders", std::vector<std::string>{});
    plan.zero = zero_from(j);
    plan.strict = j.at("strict");
    plan.structure = std::stoull(j.at("structure").get<std::string>(), nullptr, 16);
    if (plan.stages < 1 || plan.stage_devices.size() != static_cast<size_t>(plan.stages))
      fail(ErrorKind::state, "[plan.load] {} stages with {} lists of devices", plan.stages,
           plan.stage_devices.size());
    for (const auto& devices : plan.stage_devices)
      check_devices(devices, plan.plan_ngpus, "a stage");
    check_zero(plan);
    for (const json& o : j.at("ops")) plan.ops.push_back(op_from(o, plan));
    return plan;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::state, "[plan.load] malformed plan: {}", e.what());
  } catch (const std::logic_error& e) {  // stoull
    fail(ErrorKind::state, "[plan.load] malformed plan: structure is not a hexadecimal number");
  }
}

Plan for_devices(Plan plan, int plan_ngpus, int runtime_ngpus) {
  if (plan.plan_ngpus != plan_ngpus)
    throw Error(ErrorKind::plan,
                fmt::format("[plan.devices] the plan spans {} devices, compute_config.plan_ngpus "
                            "is {}; expected the same",
                            plan.plan_ngpus, plan_ngpus),
                fmt::format("set compute_config.plan_ngpus={}, or make a plan for {} devices",
                            plan.plan_ngpus, plan_ngpus));
  if (runtime_ngpus < 1 || runtime_ngpus % plan_ngpus != 0)
    fail(ErrorKind::plan, "[plan.devices] {} ranks for a plan of {} devices; expected a multiple",
         runtime_ngpus, plan_ngpus);
  plan.runtime_ngpus = runtime_ngpus;
  check_zero(plan);
  return plan;
}

int Zero::of(const std::string& name) const {
  const auto it = levels.find(name);
  return it == levels.end() ? level : it->second;
}

int Zero::most() const {
  int most = level;
  for (const auto& [name, of] : levels) most = std::max(most, of);
  return most;
}

void check_zero(const Plan& plan) {
  const Zero& zero = plan.zero;
  const auto check = [](int level) {
    if (level < Zero::none || level > Zero::weights)
      fail(ErrorKind::plan, "[plan.zero] zero is {}; expected 0 to {}", level, Zero::weights);
  };
  check(zero.level);
  for (const auto& [name, level] : zero.levels) check(level);
  if (zero.groups < 1 || plan.units() % zero.groups != 0)
    throw Error(
        ErrorKind::plan,
        fmt::format("[plan.zero] {} ZeRO groups of {} scale units; expected a divisor", zero.groups,
                    plan.units()),
        "set compute_config.zero_ngroups; there are runtime_ngpus / plan_ngpus scale units");
}

void match(const Plan& plan, const graph::Graph& graph) {
  for (size_t i = 0; i < std::max(plan.ops.size(), graph.nodes.size()); ++i) {
    const bool both = i < plan.ops.size() && i < graph.nodes.size();
    if (both && plan.ops[i].key == key_of(graph.nodes[i])) continue;
    const std::string a = i < plan.ops.size() ? to_string(plan.ops[i].key) : "nothing";
    const std::string b = i < graph.nodes.size() ? to_string(key_of(graph.nodes[i])) : "nothing";
    throw Error(ErrorKind::plan,
                fmt::format("[plan.match] the plan is for another graph: operator {} is {} in the "
                            "plan, {} in the model",
                            i, a, b),
                "make a new plan, or use the model that it was made for");
  }
  if (graph::structure_hash(graph) != plan.structure)
    fail(ErrorKind::plan,
         "[plan.match] the plan is for another graph: structure {} in the plan, {} in "
         "the model; operators agree, their connections do not",
         hex(plan.structure), hex(graph::structure_hash(graph)));
}

bool knows(const Plan& plan, const graph::Graph& graph) {
  std::set<std::pair<std::string, std::string>> known;
  for (const OpPlan& op : plan.ops) known.emplace(op.key.module, op.key.op);
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const graph::Node& node) {
    return known.contains({node.module, node.op});
  });
}

std::optional<Plan> with_operators(const Plan& plan, const Plan& other) {
  if (plan.plan_ngpus != other.plan_ngpus || plan.stage_devices != other.stage_devices)
    return std::nullopt;
  Plan out = plan;
  out.ops = other.ops;
  out.structure = other.structure;
  return out;
}

}  // namespace nns::plan
