// nnscaler._C.lower: graphs become Programs; Programs as text, JSON and Lua.
#include <memory>

#include "bind/bind.h"
#include "bind/graph.h"
#include "bind/plan.h"
#include "codegen/lua.h"
#include "lower/lower.h"
#include "lower/rule.h"
#include "lower/signature.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using lower::Lowered;
using script::guarded;
using script::push_string;
using Handle = std::shared_ptr<const Lowered>;
constexpr const char* kProgramType = "nnscaler.Program";

const Lowered& check_program(lua_State* L) {
  return *script::check_object<Handle>(L, 1, kProgramType);
}
const lower::Program& program(lua_State* L) {
  return check_program(L).program;
}

// (graph [, { device =, plan =, rank =, stage =, embedded =, first = the first program under the
// plan, in whose homes weights stay }]) → program
int lower_graph(lua_State* L) {
  const graph::Graph& graph = check_graph(L, 1);
  lower::Options options;
  if (lua_istable(L, 2)) {
    const std::string device = script::field_string(L, 2, "device", "cpu");
    options.device = device.substr(0, device.find(':'));
    options.rank = static_cast<int>(script::field_int(L, 2, "rank", 0));
    options.stage = static_cast<int>(script::field_int(L, 2, "stage", 0));
    options.embedded = script::field_boolean(L, 2, "embedded", false);
    lua_getfield(L, 2, "plan");
    if (!lua_isnil(L, -1))
      options.plan = std::make_shared<const plan::Plan>(check_plan(L, lua_gettop(L)));
    lua_pop(L, 1);
    lua_getfield(L, 2, "first");
    if (!lua_isnil(L, -1))
      options.homes = (*script::check_object<Handle>(L, lua_gettop(L), kProgramType)).homes;
    lua_pop(L, 1);
  }
  script::push_object<Handle>(L, kProgramType,
                              std::make_shared<const Lowered>(lower::lower(graph, options)));
  return 1;
}

int text(lua_State* L) {
  push_string(L, lower::to_text(program(L)));
  return 1;
}
int json(lua_State* L) {
  push_string(L, lower::to_json(program(L)));
  return 1;
}
int hash(lua_State* L) {
  push_string(L, hex(lower::hash(program(L))));
  return 1;
}
int lua(lua_State* L) {
  push_string(L, codegen::to_lua(program(L)));
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
int constants(lua_State* L) {
  push_leaves(L, program(L), program(L).constants, &program(L).constant_data);
  return 1;
}

// Whether a path leads from the parameter to the loss.
bool has_gradient(const lower::Program& p, int slot) {
  for (const lower::Segment& segment : p.segments)
    for (const lower::Instr& instr : segment.instrs)
      if (instr.kind == lower::InstrKind::accumulate && instr.target == slot) return true;
  return false;
}

// {name, shape, dtype, whole =, start =, reduce = ranks, holders =, sharded =, gradient =} of each
// parameter; `whole` and `start` (per dimension) only where the rank holds a part, `reduce` only
// where gradients are summed.
int parameters(lua_State* L) {
  const lower::Program& p = program(L);
  push_leaves(L, p, p.parameters);
  for (size_t i = 0; i < p.parameters.size(); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i + 1));
    push_part(L, p.slot(p.parameters[i]));
    if (i < p.shares.size()) {
      const lower::Share& share = p.shares[i];
      if (!share.reduce.empty()) {
        script::push_ints(L, {share.reduce.begin(), share.reduce.end()});
        lua_setfield(L, -2, "reduce");
      }
      lua_pushinteger(L, share.holders);
      lua_setfield(L, -2, "holders");
      lua_pushboolean(L, share.sharded);
      lua_setfield(L, -2, "sharded");
    }
    lua_pushboolean(L, has_gradient(p, p.parameters[i]));
    lua_setfield(L, -2, "gradient");
    lua_pop(L, 1);
  }
  return 1;
}
int buffers(lua_State* L) {  // the same without what concerns gradients
  const lower::Program& p = program(L);
  push_leaves(L, p, p.buffers);
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i + 1));
    push_part(L, p.slot(p.buffers[i]));
    lua_pop(L, 1);
  }
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
  const auto all = lower::all_rules();
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    lua_createtable(L, 0, 2);
    push_string(L, all[i]->op);
    lua_setfield(L, -2, "op");
    push_string(L, name_of(all[i]->kind));
    lua_setfield(L, -2, "kind");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// The signatures that rules write calls by: { op, names }.
int signatures(lua_State* L) {
  const auto& all = lower::signatures();
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    lua_createtable(L, 0, 2);
    push_string(L, all[i].op);
    lua_setfield(L, -2, "op");
    push_string(L, all[i].names);
    lua_setfield(L, -2, "names");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int read_header(lua_State* L) {  // (text, path) → key, edited
  const codegen::Header header =
      codegen::read_header(script::check_string(L, 1), script::check_string(L, 2));
  push_string(L, header.key);
  lua_pushboolean(L, header.edited);
  return 2;
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
                             {"inputs", guarded<inputs>},
                             {"constants", guarded<constants>},
                             {"seeds", guarded<seeds>},
                             {"input_gradients", guarded<input_gradients>},
                             {"fallbacks", guarded<fallbacks>},
                             {"notes", guarded<lines<&Lowered::notes>>},
                             {"warnings", guarded<lines<&Lowered::warnings>>}});
  lua_newtable(L);
  script::set_functions(L, {{"lower", guarded<lower_graph>},
                            {"rules", guarded<rules>},
                            {"signatures", guarded<signatures>},
                            {"read_header", guarded<read_header>}});
  return 1;
}

}  // namespace

void open_lower(lua_State* L) {
  script::preload(L, "nnscaler._C.lower", guarded<open>);
}

}  // namespace nns::bind
