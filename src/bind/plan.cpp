// nnscaler._C.plan: the builder that policies call, plans, pipeline schedules.
#include "bind/plan.h"

#include "bind/bind.h"
#include "bind/graph.h"
#include "lower/schedule/schedule.h"
#include "plan/builder.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using plan::Builder;
using script::check_int;
using script::check_string;
using script::guarded;
using PlanHandle = std::shared_ptr<const plan::Plan>;
using BuilderHandle = std::shared_ptr<Builder>;

constexpr const char* kBuilderType = "nnscaler.PlanBuilder";

Builder& builder_at(lua_State* L) {
  return *script::check_object<BuilderHandle>(L, 1, kBuilderType);
}
int small(lua_State* L, int index) {
  return static_cast<int>(check_int(L, index));
}
std::vector<int> ints_at(lua_State* L, int index) {
  const auto wide = script::check_ints(L, index);
  return {wide.begin(), wide.end()};
}

int new_builder(lua_State* L) {  // (graph, plan_ngpus, runtime_ngpus)
  auto graph = std::make_shared<const graph::Graph>(check_graph(L, 1));
  script::push_object<BuilderHandle>(
      L, kBuilderType, std::make_shared<Builder>(std::move(graph), small(L, 2), small(L, 3)));
  return 1;
}
int partition(lua_State* L) {  // (builder, node, input, dim, parts [, uneven])
  builder_at(L).partition(small(L, 2), small(L, 3), small(L, 4), small(L, 5),
                          lua_toboolean(L, 6) != 0);
  return 0;
}
int refusal(lua_State* L) {  // (builder, node, input, dim, parts [, uneven]) → text or nil
  const auto why = builder_at(L).refusal(small(L, 2), small(L, 3), small(L, 4), small(L, 5),
                                         lua_toboolean(L, 6) != 0);
  if (!why) return 0;
  script::push_string(L, *why);
  return 1;
}
int choices(lua_State* L) {  // (builder, node) → list of {input, dim}
  const auto places = builder_at(L).choices(small(L, 2));
  lua_createtable(L, static_cast<int>(places.size()), 0);
  for (size_t i = 0; i < places.size(); ++i) {
    script::push_ints(L, {places[i].input, places[i].dim});
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int replicate(lua_State* L) {  // (builder, node, parts)
  builder_at(L).replicate(small(L, 2), small(L, 3));
  return 0;
}
int assign(lua_State* L) {  // (builder, node, devices)
  builder_at(L).assign(small(L, 2), ints_at(L, 3));
  return 0;
}
int stage(lua_State* L) {  // (builder, first nodes, list of device lists)
  const auto first = ints_at(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  std::vector<std::vector<int>> devices(lua_objlen(L, 3));
  for (size_t i = 0; i < devices.size(); ++i) {
    lua_rawgeti(L, 3, static_cast<int>(i + 1));
    devices[i] = ints_at(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  builder_at(L).stage(first, std::move(devices));
  return 0;
}
int recompute(lua_State* L) {  // (builder, nodes)
  builder_at(L).recompute(ints_at(L, 2));
  return 0;
}
int schedule(lua_State* L) {  // (builder, name, micro_batches, chunks)
  builder_at(L).schedule(check_string(L, 2), small(L, 3),
                         static_cast<int>(script::opt_int(L, 4, 1)));
  return 0;
}
int weights(lua_State* L) {  // (builder, 'replicated' | 'sharded')
  static constexpr const char* names[] = {"replicated", "sharded", nullptr};
  builder_at(L).weights(static_cast<plan::WeightHome>(luaL_checkoption(L, 2, nullptr, names)));
  return 0;
}
int strict(lua_State* L) {  // (builder)
  builder_at(L).strict();
  return 0;
}
int stage_of(lua_State* L) {  // (builder, node)
  lua_pushinteger(L, builder_at(L).stage_of(small(L, 2)));
  return 1;
}
int stage_devices(lua_State* L) {  // (builder, stage)
  const auto& devices = builder_at(L).devices_of_stage(small(L, 2));
  script::push_ints(L, {devices.begin(), devices.end()});
  return 1;
}
int planned(lua_State* L) {  // (builder, node)
  lua_pushboolean(L, builder_at(L).planned(small(L, 2)));
  return 1;
}
int finish(lua_State* L) {  // (builder, policy name) → plan
  push_plan(L, builder_at(L).finish(check_string(L, 2)));
  return 1;
}

int plan_text(lua_State* L) {
  script::push_string(L, plan::to_text(check_plan(L, 1)));
  return 1;
}
int plan_json(lua_State* L) {
  script::push_string(L, plan::to_json(check_plan(L, 1)));
  return 1;
}
int plan_hash(lua_State* L) {
  script::push_string(L, hex(plan::hash(check_plan(L, 1))));
  return 1;
}
int plan_match(lua_State* L) {  // (plan, graph): throws unless the plan is for the graph
  plan::match(check_plan(L, 1), check_graph(L, 2));
  return 0;
}
// (plan) → { plan_ngpus =, stages = lists of devices, schedule =, chunks =, micro_batches =,
// sharded = }
int plan_info(lua_State* L) {
  const plan::Plan& plan = check_plan(L, 1);
  lua_createtable(L, 0, 5);
  lua_pushinteger(L, plan.plan_ngpus);
  lua_setfield(L, -2, "plan_ngpus");
  lua_createtable(L, plan.stages, 0);
  for (int s = 0; s < plan.stages; ++s) {
    const auto& devices = plan.stage_devices[static_cast<size_t>(s)];
    script::push_ints(L, {devices.begin(), devices.end()});
    lua_rawseti(L, -2, s + 1);
  }
  lua_setfield(L, -2, "stages");
  script::push_string(L, plan.schedule);
  lua_setfield(L, -2, "schedule");
  lua_pushinteger(L, plan.chunks);
  lua_setfield(L, -2, "chunks");
  lua_pushinteger(L, plan.micro_batches);
  lua_setfield(L, -2, "micro_batches");
  lua_pushboolean(L, plan.weights == plan::WeightHome::sharded);
  lua_setfield(L, -2, "sharded");
  return 1;
}
int plan_from_json(lua_State* L) {  // (text [, plan_ngpus, runtime_ngpus]) → plan
  plan::Plan plan = plan::from_json(check_string(L, 1));
  if (!lua_isnoneornil(L, 2)) plan = plan::for_devices(std::move(plan), small(L, 2), small(L, 3));
  push_plan(L, std::move(plan));
  return 1;
}

// (name, ranks, micro_batches, chunks, forward, backward, weight) → per rank a list of
// {kind, stage, micro, start, stop}
int time_line(lua_State* L) {
  const auto s = lower::make_schedule(check_string(L, 1), small(L, 2), small(L, 3),
                                      static_cast<int>(script::opt_int(L, 4, 1)));
  const lower::StageTimes times{luaL_optnumber(L, 5, 1), luaL_optnumber(L, 6, 1),
                                luaL_optnumber(L, 7, 1)};
  const auto lines = lower::time_line(s, {times});
  lua_createtable(L, static_cast<int>(lines.size()), 0);
  for (size_t r = 0; r < lines.size(); ++r) {
    lua_createtable(L, static_cast<int>(lines[r].size()), 0);
    for (size_t i = 0; i < lines[r].size(); ++i) {
      const lower::Timed& t = lines[r][i];
      lua_createtable(L, 0, 5);
      script::push_string(L, std::string(1, t.action.kind));
      lua_setfield(L, -2, "kind");
      lua_pushinteger(L, t.action.stage);
      lua_setfield(L, -2, "stage");
      lua_pushinteger(L, t.action.micro);
      lua_setfield(L, -2, "micro");
      lua_pushnumber(L, t.start);
      lua_setfield(L, -2, "start");
      lua_pushnumber(L, t.stop);
      lua_setfield(L, -2, "stop");
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
    lua_rawseti(L, -2, static_cast<int>(r + 1));
  }
  return 1;
}

int open(lua_State* L) {
  script::make_type<PlanHandle>(L, kPlanType,
                                {{"text", guarded<plan_text>},
                                 {"json", guarded<plan_json>},
                                 {"hash", guarded<plan_hash>},
                                 {"info", guarded<plan_info>},
                                 {"match", guarded<plan_match>}});
  script::make_type<BuilderHandle>(L, kBuilderType,
                                   {{"partition", guarded<partition>},
                                    {"refusal", guarded<refusal>},
                                    {"choices", guarded<choices>},
                                    {"replicate", guarded<replicate>},
                                    {"assign", guarded<assign>},
                                    {"stage", guarded<stage>},
                                    {"recompute", guarded<recompute>},
                                    {"schedule", guarded<schedule>},
                                    {"weights", guarded<weights>},
                                    {"strict", guarded<strict>},
                                    {"stage_of", guarded<stage_of>},
                                    {"stage_devices", guarded<stage_devices>},
                                    {"planned", guarded<planned>},
                                    {"finish", guarded<finish>}});
  lua_createtable(L, 0, 4);
  script::set_functions(L, {{"builder", guarded<new_builder>},
                            {"from_json", guarded<plan_from_json>},
                            {"time_line", guarded<time_line>}});
  return 1;
}

}  // namespace

void push_plan(lua_State* L, plan::Plan plan) {
  script::push_object<PlanHandle>(L, kPlanType,
                                  std::make_shared<const plan::Plan>(std::move(plan)));
}

const plan::Plan& check_plan(lua_State* L, int index) {
  return *script::check_object<PlanHandle>(L, index, kPlanType);
}

void open_plan(lua_State* L) {
  script::preload(L, "nnscaler._C.plan", guarded<open>);
}

}  // namespace nns::bind
