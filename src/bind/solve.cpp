// nnscaler._C.solve: hardware, and the plan that costs least on it.
#include "solve/bound.h"

#include <map>

#include "base/file.h"
#include "base/version.h"
#include "bind/bind.h"
#include "bind/graph.h"
#include "bind/solve.h"
#include "cost/profile.h"
#include "launch/launch.h"
#include "script/state.h"
#include "solve/linear.h"

namespace nns::bind {

namespace {

// By name; 'measured' is this machine, as `nnscaler profile` found it.
cost::Hardware hardware_named(const std::string& text) {
  if (text != "measured") return cost::find_hardware(text);
  return cost::measured_hardware(cost::profile_path(), launch::host_id(), kVersion);
}

}  // namespace

cost::Hardware hardware_at(lua_State* L, int index) {
  return hardware_named(script::field_string(L, index, "hardware", "cpu"));
}

lower::StepSettings step_settings_at(lua_State* L, int index) {
  lower::StepSettings out;
  out.micro_batches =
      static_cast<int>(script::field_int(L, index, "micro_batches", out.micro_batches));
  out.bucket_bytes = script::field_int(L, index, "bucket_bytes", out.bucket_bytes);
  out.state = script::field_number(L, index, "state", out.state);
  out.optimizer = script::field_string(L, index, "optimizer", "");
  return out;
}

namespace {

void set_number(lua_State* L, const char* key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

}  // namespace

void push_step_cost(lua_State* L, const lower::StepCost& step) {
  lua_createtable(L, 0, 12);
  set_number(L, "seconds", step.seconds);
  set_number(L, "forward", step.forward.all());
  set_number(L, "backward", step.backward.all());
  set_number(L, "communication", step.forward.communication + step.backward.communication);
  for (const auto origin :
       {cost::Origin::measured, cost::Origin::interpolated, cost::Origin::modelled}) {
    const auto i = static_cast<size_t>(origin);
    set_number(L, std::string(cost::name_of(origin)).c_str(),
               step.forward.by_origin[i] + step.backward.by_origin[i]);
  }
  set_number(L, "sums", step.once.sum);
  set_number(L, "update", step.once.update);
  set_number(L, "resting", static_cast<double>(step.resting));
  set_number(L, "saved", static_cast<double>(step.saved));
  set_number(L, "total", static_cast<double>(step.total));
}

namespace {

using script::guarded;

// Stages and recomputation of a plan as fields of the table on top: first nodes of the stages
// behind the first, devices of each, schedule, chunks; lists of nodes that run again together.
void push_stages(lua_State* L, const plan::Plan& plan) {
  std::vector<int64_t> first;
  std::map<int, std::vector<int64_t>> again;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    if (i > 0 && plan.ops[i].stage != plan.ops[i - 1].stage)
      first.push_back(static_cast<int64_t>(i));
    if (plan.ops[i].recompute >= 0) again[plan.ops[i].recompute].push_back(static_cast<int64_t>(i));
  }
  script::push_ints(L, first);
  lua_setfield(L, -2, "first");
  lua_newtable(L);
  int n = 0;
  for (const std::vector<int>& devices : plan.stage_devices) {
    script::push_ints(L, {devices.begin(), devices.end()});
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, "devices");
  script::push_string(L, plan.schedule);
  lua_setfield(L, -2, "schedule");
  set_number(L, "chunks", plan.chunks);
  lua_newtable(L);
  n = 0;
  for (const auto& [group, nodes] : again) {
    script::push_ints(L, nodes);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, "again");
}

// (text) → { name =, devices_per_host =, memory = bytes, origin = }
int hardware(lua_State* L) {
  const cost::Hardware on = hardware_named(script::check_string(L, 1));
  lua_createtable(L, 0, 4);
  script::push_string(L, on.name);
  lua_setfield(L, -2, "name");
  script::push_string(L, cost::name_of(on.origin));
  lua_setfield(L, -2, "origin");
  set_number(L, "devices_per_host", on.devices_per_host);
  set_number(L, "memory", static_cast<double>(on.memory));
  return 1;
}

int highs_problem(lua_State* L) {  // () → why plans cannot be bounded, '' where they can
  script::push_string(L, solve::highs_problem());
  return 1;
}

int profile_path(lua_State* L) {  // () → where profiles are kept, '' without a home
  script::push_string(L, cost::profile_path());
  return 1;
}

// What autodist is asked: (graph, { plan_ngpus =, runtime_ngpus =, device =, memory = bytes or
// nothing, and as hardware_at, step_settings_at })
struct Asked {
  solve::Problem problem;
  std::optional<int64_t> memory;
  solve::Choices choices;
};

Asked check_asked(lua_State* L) {
  luaL_checktype(L, 2, LUA_TTABLE);
  Asked asked;
  solve::Problem& problem = asked.problem;
  problem.graph = share_graph(L, 1);
  problem.plan_ngpus = static_cast<int>(script::field_int(L, 2, "plan_ngpus", 1));
  problem.runtime_ngpus = static_cast<int>(script::field_int(L, 2, "runtime_ngpus", 1));
  const std::string device = script::field_string(L, 2, "device", "cpu");
  problem.device = device.substr(0, device.find(':'));
  problem.on = hardware_at(L, 2);
  problem.settings = step_settings_at(L, 2);
  if (const std::string file = script::field_string(L, 2, "constraints", ""); !file.empty())
    problem.constraints = solve::parse_constraints(read_file(file, "solve.constraint"), file);
  if (const double bytes = script::field_number(L, 2, "memory", -1); bytes >= 0)
    asked.memory = static_cast<int64_t>(bytes);
  solve::Choices& choices = asked.choices;
  choices.pipeline = static_cast<int>(script::field_int(L, 2, "pipeline", 1));
  choices.schedule = script::field_string(L, 2, "schedule", "");
  choices.most_width = static_cast<int>(script::field_int(L, 2, "most_width", 0));
  choices.most_bubble = script::field_number(L, 2, "most_bubble", 1);
  if (const int zero = static_cast<int>(script::field_int(L, 2, "zero", -1)); zero >= 0)
    choices.zero = zero;
  choices.report = script::field_boolean(L, 2, "report", false);
  return asked;
}

// → seconds that no plan goes below within the limit, or nil where that is no more than `fastest`;
// `seconds`: of a plan that is known
int bound(lua_State* L) {
  const Asked asked = check_asked(L);
  const double seconds = luaL_checknumber(L, 3), fastest = luaL_checknumber(L, 4);
  const auto least = solve::bound(asked.problem, asked.memory, asked.choices, seconds, fastest);
  if (!least) return 0;
  lua_pushnumber(L, *least);
  return 1;
}

// → what was found
int autodist(lua_State* L) {
  const Asked asked = check_asked(L);
  const solve::Choices& choices = asked.choices;
  const solve::Solution found = solve::solve(asked.problem, asked.memory, choices);
  const solve::Statistics& statistics = found.report.statistics;

  lua_createtable(L, 0, 16);
  push_step_cost(L, found.cost);
  lua_setfield(L, -2, "cost");
  for (const auto& [key, value] : {std::pair("searched", found.searched),
                                   {"gap", found.gap},
                                   {"fastest", found.fastest},
                                   {"zero", static_cast<double>(found.plan.zero.level)},
                                   {"simulated", static_cast<double>(statistics.simulated)},
                                   {"labels", static_cast<double>(statistics.labels)},
                                   {"frontiers", static_cast<double>(statistics.frontiers)},
                                   {"calls", static_cast<double>(statistics.calls)},
                                   {"kinds", static_cast<double>(statistics.kinds)},
                                   {"space_seconds", statistics.space_seconds},
                                   {"search_seconds", statistics.search_seconds},
                                   {"check_seconds", statistics.check_seconds}})
    set_number(L, key, value);
  for (const auto& [key, value] : {std::pair("exact", found.exact), {"bound", found.bound}}) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, key);
  }
  lua_newtable(L);
  int n = 0;
  for (size_t i = 0; i < found.plan.ops.size(); ++i) {
    const plan::Cut& cut = found.plan.ops[i].cuts.at(0);
    if (cut.input < 0) continue;
    script::push_ints(L, {static_cast<int64_t>(i), cut.input, cut.dim});
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, "cuts");
  push_stages(L, found.plan);
  script::push_string(L, found.arranged);
  lua_setfield(L, -2, "arranged");
  if (choices.report) {
    script::push_string(L, solve::to_json(found.report));
    lua_setfield(L, -2, "report");
  }
  return 1;
}

int open(lua_State* L) {
  lua_newtable(L);
  script::set_functions(L, {{"hardware", guarded<hardware>},
                            {"profile_path", guarded<profile_path>},
                            {"highs_problem", guarded<highs_problem>},
                            {"bound", guarded<bound>},
                            {"autodist", guarded<autodist>}});
  return 1;
}

}  // namespace

void open_solve(lua_State* L) {
  script::preload(L, "nnscaler._C.solve", guarded<open>);
}

}  // namespace nns::bind
