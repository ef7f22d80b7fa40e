// Text, JSON and matching of plans.
#include "plan/plan.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nns::plan {
namespace {

using json = nlohmann::ordered_json;

constexpr int kFormat = 1;

std::string text_of(const Step& s) {
  return s.input < 0 ? fmt::format("replicate {}", s.parts)
                     : fmt::format("input {} dim {} into {}", s.input, s.dim, s.parts);
}

std::string text_of(const OpPlan& op) {
  std::vector<std::string> steps;
  for (const Step& s : op.steps) steps.push_back(text_of(s));
  return fmt::format("stage {}  {}{}: {} on {}", op.stage, to_string(op.key),
                     op.recompute < 0 ? "" : fmt::format(" recompute {}", op.recompute),
                     steps.empty() ? "whole" : fmt::format("{}", fmt::join(steps, ", ")),
                     fmt::join(op.devices, ","));
}

json json_of(const Plan& plan) {
  json ops = json::array();
  for (const OpPlan& op : plan.ops) {
    json steps = json::array();
    for (const Step& s : op.steps)
      steps.push_back({{"input", s.input}, {"dim", s.dim}, {"parts", s.parts}});
    ops.push_back({{"module", op.key.module},
                   {"op", op.key.op},
                   {"ordinal", op.key.ordinal},
                   {"steps", steps},
                   {"devices", op.devices},
                   {"stage", op.stage},
                   {"recompute", op.recompute}});
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
          {"weights", plan.weights == WeightHome::sharded ? "sharded" : "replicated"},
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
  for (const Step& s : steps) n *= s.parts;
  return n;
}

std::string to_text(const Plan& plan) {
  std::string out = fmt::format(
      "plan '{}' for graph {}: {} devices, {} ranks ({} units), {} stages, schedule {}, "
      "{} micro-batches, weights {}\n",
      plan.policy, hex(plan.structure), plan.plan_ngpus, plan.runtime_ngpus, plan.units(),
      plan.stages, plan.schedule, plan.micro_batches,
      plan.weights == WeightHome::sharded ? "sharded" : "replicated");
  for (const OpPlan& op : plan.ops) out += text_of(op) + "\n";
  return out;
}

std::string to_json(const Plan& plan) {
  return json_of(plan).dump(1) + "\n";
}

uint64_t hash(const Plan& plan) {
  return hash_bytes(json_of(plan).dump());
}

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
    plan.weights = j.at("weights") == "sharded" ? WeightHome::sharded : WeightHome::replicated;
    plan.structure = std::stoull(j.at("structure").get<std::string>(), nullptr, 16);
    for (const json& o : j.at("ops")) {
      OpPlan op;
      op.key = {o.at("module"), o.at("op"), o.at("ordinal")};
      for (const json& s : o.at("steps"))
        op.steps.push_back({s.at("input"), s.at("dim"), s.at("parts")});
      op.devices = o.at("devices").get<std::vector<int>>();
      op.stage = o.at("stage");
      op.recompute = o.at("recompute");
      if (op.devices.empty() || static_cast<size_t>(op.parts()) != op.devices.size())
        fail(ErrorKind::state, "[plan.load] {}: {} parts on {} devices", to_string(op.key),
             op.parts(), op.devices.size());
      for (int d : op.devices)
        if (d < 0 || d >= plan.plan_ngpus)
          fail(ErrorKind::state, "[plan.load] {}: device {}; expected 0 to {}", to_string(op.key),
               d, plan.plan_ngpus - 1);
      plan.ops.push_back(std::move(op));
    }
    return plan;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::state, "[plan.load] malformed plan: {}", e.what());
  } catch (const std::logic_error& e) {  // stoull
    fail(ErrorKind::state, "[plan.load] malformed plan: structure is no hexadecimal number");
  }
}

std::vector<const OpPlan*> match(const Plan& plan, const graph::Graph& graph,
                                 std::vector<int>* inherited) {
  std::map<OpKey, const OpPlan*> known;
  for (const OpPlan& op : plan.ops) known[op.key] = &op;
  if (graph.training && graph::structure_hash(graph) != plan.structure) {
    for (size_t i = 0; i < std::max(plan.ops.size(), graph.nodes.size()); ++i) {
      const std::string a = i < plan.ops.size() ? to_string(plan.ops[i].key) : "nothing";
      const std::string b = i < graph.nodes.size() ? to_string(key_of(graph.nodes[i])) : "nothing";
      if (a != b)
        throw Error(
            ErrorKind::plan,
            fmt::format("[plan.match] the plan is for another graph: operator {} is {} in the "
                        "plan, {} in the model",
                        i, a, b),
            "make a new plan, or use the model that it was made for");
    }
    fail(ErrorKind::plan,
         "[plan.match] the plan is for another graph: structure {} in the plan, {} in "
         "the model; operators agree, their connections do not",
         hex(plan.structure), hex(graph::structure_hash(graph)));
  }
  std::vector<const OpPlan*> out(graph.nodes.size(), nullptr);
  const OpPlan* first = plan.ops.empty() ? nullptr : &plan.ops.front();
  for (const graph::Node& node : graph.nodes) {
    const size_t id = static_cast<size_t>(node.id);
    if (const auto it = known.find(key_of(node)); it != known.end()) {
      out[id] = it->second;
      continue;
    }
    out[id] = first;
    for (int value : graph::inputs_of(node)) {
      const int producer = graph.values[static_cast<size_t>(value)].producer;
      if (producer < 0) continue;
      out[id] = out[static_cast<size_t>(producer)];
      break;
    }
    if (inherited != nullptr) inherited->push_back(node.id);
  }
  return out;
}

}  // namespace nns::plan
