// nnscaler._C.plan: the builder that policies call, plans, pipeline schedules.
#include "bind/plan.h"

#include "bind/bind.h"
#include "bind/graph.h"
#include "lower/schedule/pipeline.h"
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

void push_action(lua_State* L, const lower::Action& a) {
  lua_createtable(L, 0, 5);
  script::push_string(L, std::string(1, a.kind));
  lua_setfield(L, -2, "kind");
  lua_pushinteger(L, a.stage);
  lua_setfield(L, -2, "stage");
  lua_pushinteger(L, a.micro);
  lua_setfield(L, -2, "micro");
}

}  // namespace

void push_lines(lua_State* L, const std::vector<std::vector<lower::Timed>>& lines) {
  lua_createtable(L, static_cast<int>(lines.size()), 0);
  for (size_t r = 0; r < lines.size(); ++r) {
    lua_createtable(L, static_cast<int>(lines[r].size()), 0);
    for (size_t i = 0; i < lines[r].size(); ++i) {
      const lower::Timed& t = lines[r][i];
      push_action(L, t.action);
      lua_pushnumber(L, t.start);
      lua_setfield(L, -2, "start");
      lua_pushnumber(L, t.stop);
      lua_setfield(L, -2, "stop");
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
    lua_rawseti(L, -2, static_cast<int>(r + 1));
  }
}

namespace {

int new_builder(lua_State* L) {  // (graph, plan_ngpus, runtime_ngpus)
  auto graph = std::make_shared<const graph::Graph>(check_graph(L, 1));
  script::push_object<BuilderHandle>(
      L, kBuilderType, std::make_shared<Builder>(std::move(graph), small(L, 2), small(L, 3)));
  return 1;
}
std::vector<int64_t> sizes_at(lua_State* L, int index) {
  return lua_istable(L, index) ? script::check_ints(L, index) : std::vector<int64_t>{};
}
int partition(lua_State* L) {  // (builder, node, input, dim, parts [, uneven [, sizes]])
  builder_at(L).partition(small(L, 2), small(L, 3), small(L, 4), small(L, 5),
                          lua_toboolean(L, 6) != 0, sizes_at(L, 7));
  return 0;
}
// (builder, node, input, dim, parts [, uneven [, in_turns [, sizes]]]) → text?
int refusal(lua_State* L) {
  const auto why =
      builder_at(L).refusal(small(L, 2), small(L, 3), small(L, 4), small(L, 5),
                            lua_toboolean(L, 6) != 0, lua_toboolean(L, 7) != 0, sizes_at(L, 8));
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
// Per tensor 'replicate', 'value', or the dimension that is cut.
void push_splits(lua_State* L, const std::vector<annotate::TensorSplit>& splits) {
  lua_createtable(L, static_cast<int>(splits.size()), 0);
  for (size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].kind == annotate::TensorSplit::Kind::dims)
      lua_pushinteger(L, splits[i].axes.at(0));
    else
      script::push_string(
          L, splits[i].kind == annotate::TensorSplit::Kind::value ? "value" : "replicate");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}
int split(lua_State* L) {  // (builder, node, input, dim, parts) → { inputs =, outputs = } or nil
  const auto split = builder_at(L).split(small(L, 2), small(L, 3), small(L, 4), small(L, 5));
  if (!split) return 0;
  lua_createtable(L, 0, 2);
  push_splits(L, split->inputs);
  lua_setfield(L, -2, "inputs");
  push_splits(L, split->outputs);
  lua_setfield(L, -2, "outputs");
  return 1;
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
int hooks(lua_State* L) {  // (builder, node, { before =, after =, meta = })
  builder_at(L).hooks(small(L, 2), {script::field_string(L, 3, "before", ""),
                                    script::field_string(L, 3, "after", ""),
                                    script::field_string(L, 3, "meta", "")});
  return 0;
}
int recompute(lua_State* L) {  // (builder, nodes)
  builder_at(L).recompute(ints_at(L, 2));
  return 0;
}
int offload(lua_State* L) {  // (builder, nodes)
  builder_at(L).offload(ints_at(L, 2));
  return 0;
}
int schedule(lua_State* L) {  // (builder, name, micro_batches, chunks [, orders: list of texts])
  builder_at(L).schedule(check_string(L, 2), small(L, 3),
                         static_cast<int>(script::opt_int(L, 4, 1)), strings_at(L, 5));
  return 0;
}
int zero(lua_State* L) {  // (builder, level [, name of a weight])
  if (lua_isnoneornil(L, 3))
    builder_at(L).zero(small(L, 2));
  else
    builder_at(L).zero(check_string(L, 3), small(L, 2));
  return 0;
}
// (builder, groups of scale units, scatter, names of weights whose slots one rank keeps)
int shards(lua_State* L) {
  plan::Builder& builder = builder_at(L);
  builder.zero_groups(small(L, 2));
  if (lua_toboolean(L, 3) != 0) builder.zero_scatter();
  for (const std::string& name : strings_at(L, 4)) builder.undivided(name);
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
  plan::Plan plan = builder_at(L).finish(check_string(L, 2));
  if (plan.stages > 1) lower::schedule_of(plan, plan.micro_batches);
  push_plan(L, std::move(plan));
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
int plan_knows(lua_State* L) {  // (plan, graph): whether it has an entry for each kind of call
  lua_pushboolean(L, plan::knows(check_plan(L, 1), check_graph(L, 2)));
  return 1;
}
int plan_with_operators(lua_State* L) {  // (plan, other) → plan with those of the other, or nil
  auto made = plan::with_operators(check_plan(L, 1), check_plan(L, 2));
  if (!made) return 0;
  push_plan(L, std::move(*made));
  return 1;
}
// (plan) → { plan_ngpus =, runtime_ngpus =, stages = lists of devices, schedule =, chunks =,
// micro_batches =, lanes =, zero = the greatest level }
int plan_info(lua_State* L) {
  const plan::Plan& plan = check_plan(L, 1);
  lua_createtable(L, 0, 5);
  lua_pushinteger(L, plan.plan_ngpus);
  lua_setfield(L, -2, "plan_ngpus");
  lua_pushinteger(L, plan.runtime_ngpus);
  lua_setfield(L, -2, "runtime_ngpus");
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
  lua_pushinteger(L, plan.zero.most());
  lua_setfield(L, -2, "zero");
  lua_pushinteger(L, plan.micro_batches);
  lua_setfield(L, -2, "micro_batches");
  lua_pushinteger(L, lower::lanes_of(plan));
  lua_setfield(L, -2, "lanes");
  return 1;
}
int plan_from_json(lua_State* L) {  // (text [, plan_ngpus, runtime_ngpus]) → plan
  plan::Plan plan = plan::from_json(check_string(L, 1));
  if (!lua_isnoneornil(L, 2)) plan = plan::for_devices(std::move(plan), small(L, 2), small(L, 3));
  push_plan(L, std::move(plan));
  return 1;
}

// Stages that a device runs: list of { stage =, lane =, first = whether it is the first device }.
int plan_parts(lua_State* L) {  // (plan, device)
  const plan::Plan& plan = check_plan(L, 1);
  const int device = small(L, 2);
  const auto parts = lower::parts_on(plan, device);
  lua_createtable(L, static_cast<int>(parts.size()), 0);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto lane = lower::lane_of(plan, parts[i].lane);
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, parts[i].stage);
    lua_setfield(L, -2, "stage");
    lua_pushinteger(L, parts[i].lane);
    lua_setfield(L, -2, "lane");
    lua_pushboolean(L, lane.stage_devices[static_cast<size_t>(parts[i].stage)][0] == device);
    lua_setfield(L, -2, "first");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// What a device runs for so many micro-batches: list of { kind =, stage =, micro = }.
int plan_order(lua_State* L) {  // (plan, device, micro_batches [, training = true])
  const plan::Plan& plan = check_plan(L, 1);
  const bool training = lua_isnoneornil(L, 4) || lua_toboolean(L, 4);
  const auto s =
      training ? lower::schedule_of(plan, small(L, 3)) : lower::inference_of(plan, small(L, 3));
  const auto& order = s.orders.at(static_cast<size_t>(lower::pipeline_rank(plan, small(L, 2))));
  lua_createtable(L, static_cast<int>(order.size()), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    push_action(L, order[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

lower::StageTimes times_at(lua_State* L, int index) {
  return {luaL_optnumber(L, index, 1), luaL_optnumber(L, index + 1, 1),
          luaL_optnumber(L, index + 2, 1)};
}

// (name, ranks, micro_batches, chunks [, forward, backward, weight]) → time line
int time_line(lua_State* L) {
  const auto s = lower::make_schedule(check_string(L, 1), small(L, 2), small(L, 3),
                                      static_cast<int>(script::opt_int(L, 4, 1)));
  push_lines(L, lower::time_line(s, {times_at(L, 5)}));
  return 1;
}
int plan_time_line(lua_State* L) {  // (plan, micro_batches [, forward, backward, weight])
  push_lines(L,
             lower::time_line(lower::schedule_of(check_plan(L, 1), small(L, 2)), {times_at(L, 3)}));
  return 1;
}

// (name, ranks, chunks) → for each stage of a schedule the pipeline rank where it (its lane 0) lies
int placement(lua_State* L) {
  const std::string name = check_string(L, 1);
  const int ranks = small(L, 2), chunks = static_cast<int>(script::opt_int(L, 3, 1));
  const auto s = lower::make_schedule(name, ranks, 2 * ranks, chunks);
  std::vector<int64_t> rows;
  for (const auto& row : s.placement) rows.push_back(row[0]);
  script::push_ints(L, rows);
  return 1;
}

int open(lua_State* L) {
  script::make_type<PlanHandle>(L, kPlanType,
                                {{"text", guarded<plan_text>},
                                 {"json", guarded<plan_json>},
                                 {"hash", guarded<plan_hash>},
                                 {"info", guarded<plan_info>},
                                 {"parts", guarded<plan_parts>},
                                 {"order", guarded<plan_order>},
                                 {"time_line", guarded<plan_time_line>},
                                 {"match", guarded<plan_match>},
                                 {"knows", guarded<plan_knows>},
                                 {"with_operators", guarded<plan_with_operators>}});
  script::make_type<BuilderHandle>(L, kBuilderType,
                                   {{"partition", guarded<partition>},
                                    {"refusal", guarded<refusal>},
                                    {"choices", guarded<choices>},
                                    {"split", guarded<split>},
                                    {"replicate", guarded<replicate>},
                                    {"assign", guarded<assign>},
                                    {"stage", guarded<stage>},
                                    {"recompute", guarded<recompute>},
                                    {"offload", guarded<offload>},
                                    {"hooks", guarded<hooks>},
                                    {"schedule", guarded<schedule>},
                                    {"zero", guarded<zero>},
                                    {"shards", guarded<shards>},
                                    {"strict", guarded<strict>},
                                    {"stage_of", guarded<stage_of>},
                                    {"stage_devices", guarded<stage_devices>},
                                    {"planned", guarded<planned>},
                                    {"finish", guarded<finish>}});
  lua_createtable(L, 0, 4);
  script::set_functions(L, {{"builder", guarded<new_builder>},
                            {"from_json", guarded<plan_from_json>},
                            {"placement", guarded<placement>},
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
