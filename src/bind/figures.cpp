// What Programs cost: bytes on links, work of each call, memory; as tables for Lua.
#include "bind/program.h"
#include "lower/call_key.h"
#include "lower/duration.h"
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

// (program [, order = list of { kind, stage }]) → bytes { parameters, gradients, buffers,
// constants, saved, peak, total } and in_flight, the most micro-batches at one time, while the rank
// runs its parts in this order; by default those of one micro-batch.
int program_memory(lua_State* L) {
  std::vector<lower::Action> order;
  if (!lua_isnoneornil(L, 2)) {
    luaL_checktype(L, 2, LUA_TTABLE);
    for (int i = 1; i <= static_cast<int>(lua_objlen(L, 2)); ++i) {
      lua_rawgeti(L, 2, i);
      const int at = lua_gettop(L);
      order.push_back({script::field_string(L, at, "kind", "F").at(0),
                       static_cast<int>(script::field_int(L, at, "stage", 0)),
                       static_cast<int>(script::field_int(L, at, "micro", 0))});
      lua_pop(L, 1);
    }
  }
  push_memory(L, lower::memory(check_program(L).program, order));
  return 1;
}

}  // namespace nns::bind
