// Of nnscaler._C.lower: graphs become Programs, of one rank or of all.
#include "lower/skeleton.h"

#include <memory>

#include "bind/bind.h"
#include "bind/graph.h"
#include "bind/plan.h"
#include "bind/program.h"
#include "bind/solve.h"
#include "lower/fold.h"
#include "operators/record.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using script::guarded;
using Handle = std::shared_ptr<const lower::Skeleton>;
constexpr const char* kSkeletonType = "nnscaler.Skeleton";

// The list under `field` of the table on top.
std::set<std::string, std::less<>> names_of(lua_State* L, const char* field) {
  std::set<std::string, std::less<>> names;
  lua_getfield(L, -1, field);
  for (int i = 1; lua_istable(L, -1); ++i) {
    lua_rawgeti(L, -1, i);
    const bool more = !lua_isnil(L, -1);
    if (more) names.insert(script::check_string(L, lua_gettop(L)));
    lua_pop(L, 1);
    if (!more) break;
  }
  lua_pop(L, 1);
  return names;
}

lower::Products products_at(lua_State* L, int table) {
  lower::Products products;
  lua_getfield(L, table, "products");
  if (lua_istable(L, -1)) {
    if (script::field_boolean(L, lua_gettop(L), "by_rule", false))
      for (const operators::Record* record : operators::all_records())
        if (!record->tiled.empty()) products.by_rule.insert(record->name);
    products.forbidden = names_of(L, "forbidden");
    lua_getfield(L, -1, "measured");
    if (lua_istable(L, -1))
      for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1))
        products.measured[script::check_string(L, lua_gettop(L) - 1)] =
            script::check_string(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return products;
}

// { device =, plan =, embedded =, first = the skeleton of the first graph under the plan, in whose
// homes weights stay, step = whether the step of the optimizer stands in it, set_mb = MiB that a
// set of gradients takes at most, rank =, sights = whether to collect them, products = { measured =
// kernel by key, by_rule = whether the rule tiles others, forbidden = list of kernels } } at
// position 2
lower::Options options_at(lua_State* L) {
  lower::Options options;
  if (!lua_istable(L, 2)) return options;
  const std::string device = script::field_string(L, 2, "device", "cpu");
  options.device = device.substr(0, device.find(':'));
  options.rank = static_cast<int>(script::field_int(L, 2, "rank", 0));
  options.embedded = script::field_boolean(L, 2, "embedded", false);
  options.step = script::field_boolean(L, 2, "step", true);
  options.sights = script::field_boolean(L, 2, "sights", false);
  options.products = products_at(L, 2);
  lua_getfield(L, 2, "set_mb");
  if (!lua_isnil(L, -1))
    options.set_bytes = static_cast<int64_t>(script::check_number(L, -1) * (1 << 20));
  lua_pop(L, 1);
  lua_getfield(L, 2, "plan");
  if (!lua_isnil(L, -1))
    options.plan = std::make_shared<const plan::Plan>(check_plan(L, lua_gettop(L)));
  lua_pop(L, 1);
  lua_getfield(L, 2, "first");
  if (!lua_isnil(L, -1))
    options.first = script::check_object<Handle>(L, lua_gettop(L), kSkeletonType);
  lua_pop(L, 1);
  return options;
}

// (graph [, options]) → the program of one rank, lowered alone
int lower_graph(lua_State* L) {
  push_program(L, lower::lower(check_graph(L, 1), options_at(L)));
  return 1;
}

// (graph [, options]) → the programs of all ranks
int skeleton(lua_State* L) {
  script::push_object<Handle>(
      L, kSkeletonType, std::make_shared<const lower::Skeleton>(share_graph(L, 1), options_at(L)));
  return 1;
}

const lower::Skeleton& check_skeleton(lua_State* L) {
  return *script::check_object<Handle>(L, 1, kSkeletonType);
}
int rank_at(lua_State* L) {  // at position 2, 0 unless told
  return static_cast<int>(script::opt_int(L, 2, 0));
}

int project(lua_State* L) {  // ([rank]) → program
  push_program(L, check_skeleton(L).project(rank_at(L)));
  return 1;
}
int memory(lua_State* L) {  // ([rank])
  push_memory(L, check_skeleton(L).memory(rank_at(L)));
  return 1;
}
int traffic(lua_State* L) {  // ([rank])
  push_traffic(L, check_skeleton(L).traffic(rank_at(L)));
  return 1;
}
int graph(lua_State* L) {
  push_graph(L, check_skeleton(L).graph());
  return 1;
}
// ([rank]) → list of { value =, gradient =, reader =, node =, segment = its name, call =, out =
// (both from 1), layout = as text, start =, shape =, addend =, addends = } in the order of calls
int seen(lua_State* L) {
  const lower::Skeleton& skeleton = check_skeleton(L);
  const int rank = rank_at(L);
  const auto list = skeleton.seen(rank);
  const lower::Program program = skeleton.project(rank).program;
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    const lower::Seen& seen = list[i];
    lua_createtable(L, 0, 12);
    for (const auto& [key, value] : {std::pair("value", seen.value),
                                     {"reader", seen.reader},
                                     {"node", seen.node},
                                     {"call", seen.call + 1},
                                     {"out", seen.out + 1},
                                     {"addend", seen.piece.addend},
                                     {"addends", seen.piece.addends}}) {
      lua_pushinteger(L, value);
      lua_setfield(L, -2, key);
    }
    lua_pushboolean(L, seen.gradient);
    lua_setfield(L, -2, "gradient");
    script::push_string(L, program.segments[static_cast<size_t>(seen.segment)].name);
    lua_setfield(L, -2, "segment");
    script::push_string(L, seen.layout);
    lua_setfield(L, -2, "layout");
    std::vector<int64_t> start, shape;
    for (const lower::Range& range : seen.piece.box) {
      start.push_back(range.start);
      shape.push_back(range.length());
    }
    script::push_ints(L, start);
    lua_setfield(L, -2, "start");
    script::push_ints(L, shape);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
// (graph, options with a plan, { hardware =, micro_batches =, … }) → what a step costs
int simulate(lua_State* L) {
  luaL_checktype(L, 3, LUA_TTABLE);
  const lower::Options options = options_at(L);
  NNS_CHECK(options.plan, "no plan is given");
  push_step_cost(L,
                 lower::Fold(share_graph(L, 1))
                     .simulate(*options.plan, options, hardware_at(L, 3), step_settings_at(L, 3)));
  return 1;
}
void push_spent(lua_State* L, const lower::Spent& call) {
  lua_createtable(L, 0, 8);
  for (const auto& [key, value] : {std::pair("stage", static_cast<double>(call.stage)),
                                   {"node", static_cast<double>(call.node)},
                                   {"forward", call.forward},
                                   {"backward", call.backward},
                                   {"interpolated", call.interpolated},
                                   {"modelled", call.modelled},
                                   {"instrs", static_cast<double>(call.instrs)}}) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
  }
  script::push_string(L, call.op);
  lua_setfield(L, -2, "op");
  lua_pushboolean(L, call.communication);
  lua_setfield(L, -2, "communication");
}
// (plan, settings) → what a step costs, with its time line and where time and memory go
int account(lua_State* L) {
  luaL_checktype(L, 3, LUA_TTABLE);
  const lower::StepCost cost = lower::simulate(check_skeleton(L), check_plan(L, 2),
                                               hardware_at(L, 3), step_settings_at(L, 3));
  push_step_cost(L, cost);
  push_lines(L, cost.line);
  lua_setfield(L, -2, "line");
  lua_createtable(L, static_cast<int>(cost.ranks.size()), 0);
  for (size_t i = 0; i < cost.ranks.size(); ++i) {
    const lower::RankAccount& rank = cost.ranks[i];
    lua_createtable(L, 0, 7);
    lua_pushinteger(L, rank.row + 1);
    lua_setfield(L, -2, "row");
    lua_createtable(L, static_cast<int>(rank.course.size()), 0);
    for (size_t j = 0; j < rank.course.size(); ++j) {
      script::push_ints(L, {rank.course[j].top, rank.course[j].after});
      lua_rawseti(L, -2, static_cast<int>(j + 1));
    }
    lua_setfield(L, -2, "course");
    lua_pushinteger(L, rank.rank);
    lua_setfield(L, -2, "rank");
    lua_pushinteger(L, rank.ranks);
    lua_setfield(L, -2, "ranks");
    lua_pushnumber(L, static_cast<double>(rank.state));
    lua_setfield(L, -2, "state");
    push_memory(L, rank.memory);
    lua_setfield(L, -2, "memory");
    lua_createtable(L, static_cast<int>(rank.spent.size()), 0);
    for (size_t j = 0; j < rank.spent.size(); ++j) {
      push_spent(L, rank.spent[j]);
      lua_rawseti(L, -2, static_cast<int>(j + 1));
    }
    lua_setfield(L, -2, "spent");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_setfield(L, -2, "ranks");
  return 1;
}
// () → how often this process has lowered for a class
int count(lua_State* L) {
  lua_pushinteger(L, static_cast<lua_Integer>(lower::count_lowerings()));
  return 1;
}
int classes(lua_State* L) {  // list of lists of ranks that share a lowering
  const auto all = check_skeleton(L).classes();
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    script::push_ints(L, {all[i].begin(), all[i].end()});
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
// Checks the program of each class; → whether those of all ranks were compared too
int check(lua_State* L) {
  lua_pushboolean(L, check_skeleton(L).check());
  return 1;
}

}  // namespace

void add_skeleton(lua_State* L) {
  script::make_type<Handle>(L, kSkeletonType,
                            {{"project", guarded<project>},
                             {"memory", guarded<memory>},
                             {"traffic", guarded<traffic>},
                             {"graph", guarded<graph>},
                             {"seen", guarded<seen>},
                             {"account", guarded<account>},
                             {"classes", guarded<classes>},
                             {"check", guarded<check>}});
  script::set_functions(L, {{"lower", guarded<lower_graph>},
                            {"skeleton", guarded<skeleton>},
                            {"simulate", guarded<simulate>},
                            {"count", guarded<count>}});
}

}  // namespace nns::bind
