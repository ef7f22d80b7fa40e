// What Programs cost: bytes on links, work of each call, memory; as tables for Lua.
#include "bind/program.h"
#include "lower/call_key.h"
#include "lower/duration.h"
#include "lower/memory_phases.h"
#include "lower/uses.h"
#include "script/state.h"

namespace nns::bind {

using script::push_string;

void push_traffic(lua_State* L, const std::vector<lower::Traffic>& list) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    lua_createtable(L, 0, 6);
    push_string(L, list[i].segment);
    lua_setfield(L, -2, "segment");
    push_string(L, list[i].op);
    lua_setfield(L, -2, "op");
    const std::pair<const char*, int64_t> numbers[] = {
        {"ranks", list[i].ranks}, {"calls", list[i].calls}, {"bytes", list[i].bytes}};
    for (const auto& [key, value] : numbers) {
      lua_pushnumber(L, static_cast<double>(value));
      lua_setfield(L, -2, key);
    }
    lua_pushboolean(L, list[i].weights);
    lua_setfield(L, -2, "weights");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void push_memory(lua_State* L, const lower::Memory& m) {
  lua_createtable(L, 0, 9);
  lua_pushinteger(L, m.in_flight);
  lua_setfield(L, -2, "in_flight");
  for (const auto& [name, bytes] : {std::pair{"parameters", m.parameters},
                                    {"gradients", m.gradients},
                                    {"buffers", m.buffers},
                                    {"constants", m.constants},
                                    {"saved", m.saved},
                                    {"peak", m.peak},
                                    {"host", m.host},
                                    {"total", m.total()}}) {
    lua_pushnumber(L, static_cast<double>(bytes));
    lua_setfield(L, -2, name);
  }
}

int program_traffic(lua_State* L) {
  push_traffic(L, lower::traffic(check_program(L).program));
  return 1;
}

// What each segment calls, in the order in which its function calls it: { name =, { call =, op =,
// flops =, bytes =, largest =, dtype =, communicates = }, … }.
int program_call_costs(lua_State* L) {
  const lower::Program& p = check_program(L).program;
  const lower::Storage storage(p);
  lua_createtable(L, static_cast<int>(p.segments.size()), 0);
  for (size_t i = 0; i < p.segments.size(); ++i) {
    const lower::Segment& segment = p.segments[i];
    lua_createtable(L, static_cast<int>(segment.instrs.size()), 1);
    push_string(L, segment.name);
    lua_setfield(L, -2, "name");
    int n = 0;
    for (const lower::Instr& instr : segment.instrs) {
      if (instr.kind != lower::InstrKind::call && instr.kind != lower::InstrKind::accumulate)
        continue;
      const lower::Work work = lower::work_of(p, storage, segment.kind, instr);
      lua_createtable(L, 0, 7);
      push_string(L, lower::call_key(p, storage, instr));
      lua_setfield(L, -2, "call");
      push_string(L, instr.kind == lower::InstrKind::call ? instr.op : "accumulate");
      lua_setfield(L, -2, "op");
      for (const auto& [key, value] : {std::pair("flops", work.flops),
                                       {"bytes", static_cast<double>(work.bytes)},
                                       {"largest", static_cast<double>(work.largest)}}) {
        lua_pushnumber(L, value);
        lua_setfield(L, -2, key);
      }
      push_string(L, name_of(work.dtype));
      lua_setfield(L, -2, "dtype");
      const operators::Communication kind = lower::communication_of(instr);
      lua_pushboolean(L, instr.kind == lower::InstrKind::call &&
                             kind != operators::Communication::none &&
                             kind != operators::Communication::value_chunk);
      lua_setfield(L, -2, "communicates");
      lua_rawseti(L, -2, ++n);
    }
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// List of { kind, stage, micro } at an index; empty where there is none.
std::vector<lower::Action> order_at(lua_State* L, int index) {
  std::vector<lower::Action> order;
  if (lua_isnoneornil(L, index)) return order;
  luaL_checktype(L, index, LUA_TTABLE);
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    const int at = lua_gettop(L);
    order.push_back({script::field_string(L, at, "kind", "F").at(0),
                     static_cast<int>(script::field_int(L, at, "stage", 0)),
                     static_cast<int>(script::field_int(L, at, "micro", 0))});
    lua_pop(L, 1);
  }
  return order;
}

// (program [, order = list of { kind, stage }]) → bytes { parameters, gradients, buffers,
// constants, saved, peak, total } and in_flight, the most micro-batches at one time, while the rank
// runs its parts in this order; by default those of one micro-batch.
int program_memory(lua_State* L) {
  push_memory(L, lower::memory(check_program(L).program, order_at(L, 2)));
  return 1;
}

// (program, order as above, apart: whether gradients rest on the host) → by phase of the step
// (forward, backward, step) the bytes { activations, gradients } above what rests all the time.
int program_phases(lua_State* L) {
  const lower::Phases phases =
      lower::phases(check_program(L).program, order_at(L, 2), lua_toboolean(L, 3) != 0);
  lua_createtable(L, 0, 3);
  for (const auto& [name, phase] : {std::pair{"forward", phases.forward},
                                    {"backward", phases.backward},
                                    {"step", phases.step}}) {
    lua_createtable(L, 0, 2);
    lua_pushnumber(L, static_cast<double>(phase.activations));
    lua_setfield(L, -2, "activations");
    lua_pushnumber(L, static_cast<double>(phase.gradients));
    lua_setfield(L, -2, "gradients");
    lua_setfield(L, -2, name);
  }
  return 1;
}

}  // namespace nns::bind
