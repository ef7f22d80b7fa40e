// nnscaler._C.tensor: the tensor type, operators as functions, and what the other files add.
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "script/state.h"
#include "tensor/allocator.h"
#include "tensor/arguments.h"
#include "tensor/call.h"
#include "tensor/calling.h"
#include "tensor/host.h"
#include "tensor/modules.h"

namespace nns::tensor {
namespace {

char g_door_key;  // its address is the registry key

Door& upvalue_door(lua_State* L) {
  return *static_cast<Door*>(lua_touserdata(L, lua_upvalueindex(1)));
}

int call_closure(lua_State* L) {  // upvalues: Door*, Operator*
  return call_with(L, upvalue_door(L),
                   *static_cast<const Operator*>(lua_touserdata(L, lua_upvalueindex(2))));
}

int destroy_door(lua_State* L) {
  static_cast<Door*>(lua_touserdata(L, 1))->~Door();
  return 0;
}

// Calls the library's function `name` (methods table, upvalue 2) on the arguments 1 … top.
int call_hook(lua_State* L, const char* name) {
  lua_getfield(L, lua_upvalueindex(2), name);
  if (lua_isnil(L, -1)) fail(ErrorKind::internal, "[tensor.open] no hook '{}'", name);
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

int index_tensor(lua_State* L) {  // (tensor, key); upvalues: Door*, methods
  if (lua_type(L, 2) != LUA_TSTRING) return call_hook(L, "_at");
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(2));
  if (!lua_isnil(L, -1)) return 1;
  lua_pop(L, 1);
  Door& door = upvalue_door(L);
  Box& box = check_box(L, 1);
  size_t size = 0;
  const char* text = lua_tolstring(L, 2, &size);
  const std::string_view name(text, size);
  if (push_property(L, door, box, name)) return 1;
  const Operator* op = find_operator(fmt::format("aten::{}", name));
  if (op == nullptr)
    throw Error(ErrorKind::model,
                fmt::format("[tensor.method] a tensor has no property or operator '{}'", name),
                "operators have ATen's names");
  push_operator(L, door, *op);
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, lua_upvalueindex(2));
  return 1;
}

int assign_tensor(lua_State* L) {  // (tensor, key, value)
  if (lua_type(L, 2) != LUA_TSTRING) {
    call_hook(L, "_put");
    return 0;
  }
  size_t size = 0;
  const char* text = lua_tolstring(L, 2, &size);
  if (!set_property(L, upvalue_door(L), check_box(L, 1), {text, size}, 3))
    fail(ErrorKind::model, "[tensor.property] a tensor has no property '{}' that can be set", text);
  return 0;
}

// --- functions of the module
// ----------------------------------------------------------------------

int operator_function(lua_State* L) {  // (name) → function
  const std::string name = script::check_string(L, 1);
  const Operator* op = find_operator(name);
  if (op == nullptr) fail_unknown(name);
  push_operator(L, door_of(L), *op);
  return 1;
}
int has_operator(lua_State* L) {  // (name)
  lua_pushboolean(L, find_operator(script::check_string(L, 1)) != nullptr);
  return 1;
}
int schemas(lua_State* L) {  // (name) → list of schemas in order of preference
  const std::string name = script::check_string(L, 1);
  const Operator* op = find_operator(name);
  if (op == nullptr) fail_unknown(name);
  lua_createtable(L, static_cast<int>(op->overloads.size()), 0);
  for (size_t i = 0; i < op->overloads.size(); ++i) {
    script::push_string(L, toString(op->overloads[i].op.schema()));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int is_tensor(lua_State* L) {
  lua_pushboolean(L, test_box(L, 1) != nullptr);
  return 1;
}
int live(lua_State* L) {  // → boxes, bytes
  lua_pushnumber(L, static_cast<double>(live_boxes()));
  lua_pushnumber(L, static_cast<double>(live_bytes()));
  return 2;
}
int release_all(lua_State* L) {  // (tensors…): what generated code does at the last use
  for (int i = lua_gettop(L); i > 0; --i)
    if (!lua_isnil(L, i)) release(check_box(L, i));
  return 0;
}
int memory(lua_State* L) {  // ([reset]) → live, peak bytes of LibTorch's memory on the CPU
  const MemoryCount count = cpu_memory();
  if (lua_toboolean(L, 1) != 0) reset_peak();
  lua_pushnumber(L, static_cast<double>(count.live));
  lua_pushnumber(L, static_cast<double>(count.peak));
  return 2;
}
int set_memory_limit(lua_State* L) {  // (bytes), 0: as much as there is
  limit_memory(static_cast<int64_t>(script::check_number(L, 1)));
  return 0;
}
int host_memory(lua_State* L) {  // ([reset]) → live, peak bytes of the host's memory for states
  const MemoryCount count = tensor::host_memory();
  if (lua_toboolean(L, 1) != 0) reset_host_peak();
  lua_pushnumber(L, static_cast<double>(count.live));
  lua_pushnumber(L, static_cast<double>(count.peak));
  return 2;
}
int host_copy(lua_State* L) {  // (tensor) → a contiguous copy of it there
  const at::Tensor x = check_real(L, 1).detach();
  push(L, host_empty(x.sizes(), x.scalar_type()).copy_(x));
  return 1;
}
int host_keep(lua_State* L) {  // (tensor) → a copy of it there, laid out as it is
  push(L, to_host(check_real(L, 1).detach()));
  return 1;
}
int host_give(lua_State* L) {  // (tensor, device) → a copy of it on the device
  push(L, from_host(check_real(L, 1), script::check_string(L, 2)));
  return 1;
}
int has_cuda(lua_State* L) {  // → boolean, reason
  const std::string problem = cuda_problem();
  lua_pushboolean(L, problem.empty());
  script::push_string(L, problem);
  return 2;
}

int cuda_count(lua_State* L) {  // → GPUs that can be used
  lua_pushinteger(L, cuda_problem().empty() ? static_cast<int>(at::getNumGPUs()) : 0);
  return 1;
}

int set_cuda_device(lua_State* L) {  // (index): the GPU that 'cuda' means on this thread
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(
      c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(script::check_int(L, 1))));
  return 0;
}

void open_type(lua_State* L, Door& door) {  // [module]
  luaL_newmetatable(L, kTensorType);
  const int meta = lua_gettop(L);
  lua_pushvalue(L, meta);
  door.metatable_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  script::push_string(L, kTensorType);
  lua_setfield(L, meta, "__name");
  lua_pushcfunction(L, &collect_box);
  lua_setfield(L, meta, "__gc");
  lua_newtable(L);
  const int methods = lua_gettop(L);
  add_methods(L);
  const auto set = [&](const char* name, lua_CFunction function) {
    lua_pushlightuserdata(L, &door);
    lua_pushvalue(L, methods);
    lua_pushcclosure(L, function, 2);
    lua_setfield(L, meta, name);
  };
  set("__index", guard<index_tensor>);
  set("__newindex", guard<assign_tensor>);
  lua_pushvalue(L, methods);
  lua_setfield(L, meta - 1, "methods");
  lua_pushvalue(L, meta);
  lua_setfield(L, meta - 1, "metatable");
  lua_settop(L, meta - 1);
}

int open_module(lua_State* L) {
  lua_pushlightuserdata(L, &g_door_key);
  Door& door = *new (lua_newuserdata(L, sizeof(Door))) Door;
  lua_newtable(L);
  lua_pushcfunction(L, &destroy_door);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  script::make_type<at::Generator>(L, kGeneratorType, {});
  install_allocator();
  // Costs 2 ms each 16 MB; what our programs read they have written.
  at::globalContext().setDeterministicFillUninitializedMemory(false);

  lua_createtable(L, 0, 50);
  open_type(L, door);
  script::set_functions(L, {{"operator", guard<operator_function>},
                            {"has_operator", guard<has_operator>},
                            {"schemas", guard<schemas>},
                            {"is_tensor", guard<is_tensor>},
                            {"live", guard<live>},
                            {"memory", guard<memory>},
                            {"limit_memory", guard<set_memory_limit>},
                            {"host_memory", guard<host_memory>},
                            {"host_copy", guard<host_copy>},
                            {"to_host", guard<host_keep>},
                            {"from_host", guard<host_give>},
                            {"release", guard<release_all>},
                            {"has_cuda", guard<has_cuda>},
                            {"cuda_count", guard<cuda_count>},
                            {"set_cuda_device", guard<set_cuda_device>}});
  add_values(L);
  add_parameters(L);
  add_modes(L);
  add_build_info(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nnscaler.tensor.metatable");
  lua_call(L, 1, 1);
  lua_pushvalue(L, -2);
  lua_call(L, 1, 0);
  return 1;
}

}  // namespace

Door& door_of(lua_State* L) {
  lua_pushlightuserdata(L, &g_door_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  auto* door = static_cast<Door*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  if (door == nullptr) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "nnscaler._C.tensor");
    lua_call(L, 1, 0);
    return door_of(L);
  }
  return *door;
}

Scope& scope_of(lua_State* L) {
  return door_of(L).scope;
}

void push_operator(lua_State* L, Door& door, const Operator& op) {
  const lua_CFunction fast = fast_function(op.name);
  lua_pushlightuserdata(L, &door);
  lua_pushlightuserdata(L, const_cast<Operator*>(&op));
  lua_pushcclosure(L, fast != nullptr ? fast : guard<call_closure>, 2);
}

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.tensor", guard<open_module>);
}

}  // namespace nns::tensor
