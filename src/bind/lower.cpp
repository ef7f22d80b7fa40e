// nnscaler._C.lower: Programs as text, JSON and Lua, and what they tell.
#include <memory>

#include "bind/bind.h"
#include "bind/program.h"
#include "codegen/lua.h"
#include "lower/gradients.h"
#include "lower/products.h"
#include "lower/program_json.h"
#include "operators/record.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using lower::Lowered;
using script::guarded;
using script::push_string;
using Handle = std::shared_ptr<const Lowered>;
constexpr const char* kProgramType = "nnscaler.Program";

const lower::Program& program(lua_State* L) {
  return check_program(L).program;
}

// (text) → program, as `json` of it wrote it
int read_program(lua_State* L) {
  push_program(L, lower::from_json(script::check_string(L, 1)));
  return 1;
}

int text(lua_State* L) {
  push_string(L, lower::to_text(program(L)));
  return 1;
}
int json(lua_State* L) {
  push_string(L, lower::to_json(check_program(L)));
  return 1;
}
int hash(lua_State* L) {
  push_string(L, hex(lower::hash(program(L))));
  return 1;
}
int lua(lua_State* L) {  // (program [, settings in one line])
  push_string(L,
              codegen::to_lua(program(L), lua_isnoneornil(L, 2) ? "" : script::check_string(L, 2)));
  return 1;
}
int key(lua_State* L) {
  push_string(L, codegen::key_of(program(L)));
  return 1;
}

// {name, shape, dtype[, data]} of each slot.
void push_leaves(lua_State* L, const lower::Program& p, const std::vector<int>& ids,
                 const std::vector<std::string>* data = nullptr) {
  lua_createtable(L, static_cast<int>(ids.size()), 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const lower::Slot& slot = p.slot(ids[i]);
    lua_createtable(L, 0, 4);
    push_string(L, slot.name);
    lua_setfield(L, -2, "name");
    script::push_ints(L, slot.type.shape);
    lua_setfield(L, -2, "shape");
    push_string(L, name_of(slot.type.dtype));
    lua_setfield(L, -2, "dtype");
    if (data != nullptr) {
      push_string(L, data->at(i));
      lua_setfield(L, -2, "data");
    }
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}
// Sets `whole` and `start` of the table on top, where the slot is a part.
void push_part(lua_State* L, const lower::Slot& slot) {
  if (slot.whole.empty()) return;
  script::push_ints(L, slot.whole);
  lua_setfield(L, -2, "whole");
  std::vector<int64_t> start;
  for (const lower::Range& r : slot.box) start.push_back(r.start);
  script::push_ints(L, start);
  lua_setfield(L, -2, "start");
}
int inputs(lua_State* L) {
  push_leaves(L, program(L), program(L).segments.at(0).inputs);
  return 1;
}
// Products that either kernel could make: list of { key =, op =, rows =, inner =, columns =, kernel
// = that makes it }.
int products(lua_State* L) {
  lua_newtable(L);
  int n = 0;
  for (const lower::ProductCall& p : lower::products(program(L))) {
    lua_createtable(L, 0, 6);
    for (const auto& [name, text] : {std::pair("key", p.key), {"op", p.op}, {"kernel", p.kernel}}) {
      push_string(L, text);
      lua_setfield(L, -2, name);
    }
    for (const auto& [name, size] :
         {std::pair("rows", p.rows), {"inner", p.inner}, {"columns", p.columns}}) {
      lua_pushinteger(L, static_cast<lua_Integer>(size));
      lua_setfield(L, -2, name);
    }
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}
// Casts of parameters that micro-batches of a step share: names under which programs read them.
int casts(lua_State* L) {
  const lower::Program& p = program(L);
  lua_createtable(L, static_cast<int>(p.casts.size()), 0);
  for (size_t i = 0; i < p.casts.size(); ++i) {
    push_string(L, p.slot(p.casts[i].outs[0]).name);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
// { { name =, kind = 'F' | 'B' | 'W', stage = }, …, last_stage =, tags = }
int segments(lua_State* L) {
  const lower::Program& p = program(L);
  lua_createtable(L, static_cast<int>(p.segments.size()), 2);
  for (size_t i = 0; i < p.segments.size(); ++i) {
    const lower::Segment& segment = p.segments[i];
    lua_createtable(L, 0, 3);
    push_string(L, segment.name);
    lua_setfield(L, -2, "name");
    push_string(L, std::string(1, lower::letter_of(segment.kind)));
    lua_setfield(L, -2, "kind");
    lua_pushinteger(L, segment.stage);
    lua_setfield(L, -2, "stage");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_pushinteger(L, p.last_stage);
  lua_setfield(L, -2, "last_stage");
  lua_pushinteger(L, p.tags);
  lua_setfield(L, -2, "tags");
  return 1;
}
// List of { op =, place = (where it stands in the model, '' where nowhere) } of the calls of a
// segment, in the order in which they run.
int calls(lua_State* L) {  // (program, name of the segment)
  const std::string name = script::check_string(L, 2);
  for (const lower::Segment& segment : program(L).segments) {
    if (segment.name != name) continue;
    lua_newtable(L);
    int n = 0;
    for (const lower::Instr& instr : segment.instrs) {
      if (instr.kind != lower::InstrKind::call) continue;
      lua_createtable(L, 0, 2);
      push_string(L, instr.op);
      lua_setfield(L, -2, "op");
      push_string(L, instr.loc.line > 0 ? short_form(instr.loc) : "");
      lua_setfield(L, -2, "place");
      lua_rawseti(L, -2, ++n);
    }
    return 1;
  }
  fail(ErrorKind::usage, "[lower.calls] there is no segment '{}'", name);
}
// → list of { kind = 'F' | 'B' | 'W', stage =, micro = } that the rank runs in a step, and of how
// many micro-batches that is
int schedule(lua_State* L) {
  const lower::Program& p = program(L);
  lua_createtable(L, static_cast<int>(p.schedule.size()), 0);
  for (size_t i = 0; i < p.schedule.size(); ++i) {
    lua_createtable(L, 0, 3);
    push_string(L, std::string(1, p.schedule[i].kind));
    lua_setfield(L, -2, "kind");
    lua_pushinteger(L, p.schedule[i].stage);
    lua_setfield(L, -2, "stage");
    lua_pushinteger(L, p.schedule[i].micro);
    lua_setfield(L, -2, "micro");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_pushinteger(L, p.micro_batches);
  return 2;
}
// → adapters, how many of them are one call with one call as its mirror, and a table of how often
// each pair of calls is there
int adapters(lua_State* L) {
  const lower::AdapterCount& count = check_program(L).adapters;
  lua_pushinteger(L, count.all);
  lua_pushinteger(L, count.paired);
  lua_createtable(L, 0, static_cast<int>(count.pairs.size()));
  for (const auto& [pair, times] : count.pairs) {
    lua_pushinteger(L, times);
    lua_setfield(L, -2, pair.c_str());
  }
  return 3;
}
int groups(lua_State* L) {  // list of lists of ranks, in the order in which all ranks make them
  const auto all = lower::groups_of(program(L));
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    script::push_ints(L, {all[i].begin(), all[i].end()});
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int constants(lua_State* L) {
  push_leaves(L, program(L), program(L).constants, &program(L).constant_data);
  return 1;
}

// How many addends of its gradient a micro-batch gives; 0: no path leads from it to the loss.
int addends(const lower::Program& p, int slot) {
  int n = 0;
  for (const lower::Segment& segment : p.segments)
    for (const lower::Instr& instr : segment.instrs)
      n += instr.kind == lower::InstrKind::accumulate && instr.target == slot;
  return n;
}

// Sets `zero` of the table on top, and where states rest in shards `over`, `dim`, `length`, `owner`
// (from 0) and `scatter`.
void push_shards(lua_State* L, const lower::Share& share) {
  lua_pushinteger(L, share.zero);
  lua_setfield(L, -2, "zero");
  if (share.zero == 0) return;
  script::push_ints(L, {share.over.begin(), share.over.end()});
  lua_setfield(L, -2, "over");
  lua_pushinteger(L, share.dim);
  lua_setfield(L, -2, "dim");
  lua_pushinteger(L, share.length);
  lua_setfield(L, -2, "length");
  if (share.owner >= 0) {
    lua_pushinteger(L, share.owner);
    lua_setfield(L, -2, "owner");
  }
  lua_pushboolean(L, share.scatter);
  lua_setfield(L, -2, "scatter");
}

// {name, shape, dtype, gradient_dtype, whole =, start =, reduce = ranks, holders =, zero =,
// addends =} of each parameter; `whole` and `start` (per dimension) only where the rank holds a
// part, `reduce` only where gradients are summed, `gradient`, its shape, only where that is in
// shards and the weight is not; with what push_shards sets.
int parameters(lua_State* L) {
  const lower::Program& p = program(L);
  push_leaves(L, p, p.parameters);
  for (size_t i = 0; i < p.parameters.size(); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i + 1));
    push_part(L, p.slot(p.parameters[i]));
    push_string(L, name_of(lower::gradient_type(p.slot(p.parameters[i])).dtype));
    lua_setfield(L, -2, "gradient_dtype");
    if (i < p.shares.size()) {
      const lower::Share& share = p.shares[i];
      if (!share.reduce.empty()) {
        script::push_ints(L, {share.reduce.begin(), share.reduce.end()});
        lua_setfield(L, -2, "reduce");
      }
      lua_pushinteger(L, share.holders);
      lua_setfield(L, -2, "holders");
      push_shards(L, share);
    }
    if (const auto& gradient = p.slot(p.parameters[i]).gradient; !gradient.empty()) {
      script::push_ints(L, gradient);
      lua_setfield(L, -2, "gradient");
    }
    lua_pushinteger(L, addends(p, p.parameters[i]));
    lua_setfield(L, -2, "addends");
    lua_pop(L, 1);
  }
  return 1;
}
int buffers(lua_State* L) {  // the same with `decay` in place of what concerns gradients
  const lower::Program& p = program(L);
  push_leaves(L, p, p.buffers);
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i + 1));
    push_part(L, p.slot(p.buffers[i]));
    for (const lower::Segment& segment : p.segments)
      for (const lower::Instr& instr : segment.instrs)
        if (instr.kind == lower::InstrKind::update && instr.target == p.buffers[i] &&
            instr.args.size() > 1) {
          lua_pushnumber(L, std::get<double>(instr.args[1].value));
          lua_setfield(L, -2, "decay");
        }
    lua_pop(L, 1);
  }
  return 1;
}

// List of { ranks = (where gradients are summed), names =, late = true (where this graph has none
// of them), zero =, over =, scatter = (where states rest in shards) }: the sets of gradients of the
// step.
int sets(lua_State* L) {
  const lower::Program& p = program(L);
  lua_createtable(L, static_cast<int>(p.sets.size()), 0);
  for (size_t i = 0; i < p.sets.size(); ++i) {
    const lower::GradientSet& set = p.sets[i];
    lua_createtable(L, 0, 3);
    if (!set.ranks.empty()) {
      script::push_ints(L, {set.ranks.begin(), set.ranks.end()});
      lua_setfield(L, -2, "ranks");
    }
    lua_createtable(L, static_cast<int>(set.parameters.size()), 0);
    for (size_t k = 0; k < set.parameters.size(); ++k) {
      push_string(L, p.slot(set.parameters[k]).name);
      lua_rawseti(L, -2, static_cast<int>(k + 1));
    }
    lua_setfield(L, -2, "names");
    if (set.zero > 0) {
      lua_pushinteger(L, set.zero);
      lua_setfield(L, -2, "zero");
      script::push_ints(L, {set.over.begin(), set.over.end()});
      lua_setfield(L, -2, "over");
      lua_pushboolean(L, set.scatter);
      lua_setfield(L, -2, "scatter");
    }
    if (set.late) {
      lua_pushboolean(L, 1);
      lua_setfield(L, -2, "late");
    }
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// (list of { name =, shape =, dtype =, reduce = ranks or nil, holders = }, name of the model) → a
// program of a step alone: of parameters outside of any graph.
int step_alone(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  std::vector<lower::Slot> slots;
  std::vector<lower::Share> shares;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    const int at = lua_gettop(L);
    lower::Slot& slot = slots.emplace_back();
    slot.name = script::field_string(L, at, "name", "");
    const auto dtype = dtype_from_name(script::field_string(L, at, "dtype", ""));
    if (!dtype) luaL_argerror(L, 1, "expected a dtype of each parameter");
    slot.type.dtype = *dtype;
    lua_getfield(L, at, "shape");
    slot.type.shape = script::check_ints(L, -1);
    lower::Share& share = shares.emplace_back();
    share.holders = static_cast<int>(script::field_int(L, at, "holders", 1));
    lua_getfield(L, at, "reduce");
    if (!lua_isnil(L, -1))
      for (int64_t rank : script::check_ints(L, -1)) share.reduce.push_back(static_cast<int>(rank));
    lua_settop(L, at - 1);
  }
  Lowered out;
  out.program = lower::step_alone(script::check_string(L, 2), std::move(slots), std::move(shares));
  push_program(L, std::move(out));
  return 1;
}

void push_names(lua_State* L, const std::vector<std::pair<std::string, int>>& list) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    push_string(L, list[i].first);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}
// Of an embedded program: the results of forward that backward takes gradients of ("1", "2.h.0"),
// and the inputs whose gradients it gives.
int seeds(lua_State* L) {
  push_names(L, program(L).seeds);
  return 1;
}
int input_gradients(lua_State* L) {
  push_names(L, program(L).input_gradients);
  return 1;
}

// List of { op, module, place }: calls executed again under autograd.
int fallbacks(lua_State* L) {
  const auto& list = check_program(L).fallbacks;
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    lua_createtable(L, 0, 3);
    push_string(L, list[i].op);
    lua_setfield(L, -2, "op");
    push_string(L, list[i].module);
    lua_setfield(L, -2, "module");
    push_string(L, short_form(list[i].loc));
    lua_setfield(L, -2, "place");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
template <std::vector<std::string> Lowered::* Lines>
int lines(lua_State* L) {
  const auto& list = check_program(L).*Lines;
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    push_string(L, list[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// All derivative rules, sorted: { op, kind = "rule" | "composite" | "constant" }.
int rules(lua_State* L) {
  using operators::DerivativeKind;
  lua_newtable(L);
  int n = 0;
  for (const operators::Record* record : operators::all_records()) {
    const DerivativeKind kind = record->derivative.kind;
    if (kind == DerivativeKind::none && !record->constant) continue;
    lua_createtable(L, 0, 2);
    push_string(L, record->name);
    lua_setfield(L, -2, "op");
    push_string(L, record->constant                    ? "constant"
                   : kind == DerivativeKind::expansion ? "composite"
                                                       : "rule");
    lua_setfield(L, -2, "kind");
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

int read_header(lua_State* L) {  // (text, path) → key, edited, settings
  const codegen::Header header =
      codegen::read_header(script::check_string(L, 1), script::check_string(L, 2));
  push_string(L, header.key);
  lua_pushboolean(L, header.edited);
  push_string(L, header.config);
  return 3;
}

int open(lua_State* L) {
  script::make_type<Handle>(L, kProgramType,
                            {{"text", guarded<text>},
                             {"json", guarded<json>},
                             {"hash", guarded<hash>},
                             {"lua", guarded<lua>},
                             {"key", guarded<key>},
                             {"parameters", guarded<parameters>},
                             {"buffers", guarded<buffers>},
                             {"sets", guarded<sets>},
                             {"traffic", guarded<program_traffic>},
                             {"inputs", guarded<inputs>},
                             {"casts", guarded<casts>},
                             {"segments", guarded<segments>},
                             {"calls", guarded<calls>},
                             {"products", guarded<products>},
                             {"call_costs", guarded<program_call_costs>},
                             {"schedule", guarded<schedule>},
                             {"adapters", guarded<adapters>},
                             {"groups", guarded<groups>},
                             {"constants", guarded<constants>},
                             {"seeds", guarded<seeds>},
                             {"input_gradients", guarded<input_gradients>},
                             {"fallbacks", guarded<fallbacks>},
                             {"memory", guarded<program_memory>},
                             {"phases", guarded<program_phases>},
                             {"notes", guarded<lines<&Lowered::notes>>},
                             {"warnings", guarded<lines<&Lowered::warnings>>}});
  lua_newtable(L);
  add_skeleton(L);
  script::set_functions(L, {{"from_json", guarded<read_program>},
                            {"rules", guarded<rules>},
                            {"step", guarded<step_alone>},
                            {"read_header", guarded<read_header>}});
  return 1;
}

}  // namespace

const Lowered& check_program(lua_State* L) {
  return *script::check_object<Handle>(L, 1, kProgramType);
}
void push_program(lua_State* L, Lowered lowered) {
  script::push_object<Handle>(L, kProgramType, std::make_shared<const Lowered>(std::move(lowered)));
}

void open_lower(lua_State* L) {
  script::preload(L, "nnscaler._C.lower", guarded<open>);
}

}  // namespace nns::bind
