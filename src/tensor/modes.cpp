// Modes as blocks (a Lua function runs inside a guard), threads, the module scope.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "script/state.h"
#include "tensor/arguments.h"
#include "tensor/call.h"
#include "tensor/calling.h"

namespace nns::tensor {
namespace {

// Calls the function at `index` on the arguments above it. Guards of the caller are undone when a
// Lua error passes: LuaJIT unwinds C++ frames.
int call_block(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TFUNCTION);
  lua_call(L, lua_gettop(L) - index, LUA_MULTRET);
  return lua_gettop(L) - index + 1;
}

int no_grad(lua_State* L) {  // (function, arguments…) → its results
  const at::NoGradGuard guard;
  return call_block(L, 1);
}
int enable_grad(lua_State* L) {
  const at::AutoGradMode guard(true);
  return call_block(L, 1);
}
int inference_mode(lua_State* L) {
  const c10::InferenceMode guard(true);
  return call_block(L, 1);
}
// For generated programs, which hold their backward themselves: no operator passes autograd.
int without_autograd(lua_State* L) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::NoGradGuard no_gradients;
  return call_block(L, 1);
}
// Inside without_autograd: for a derivative that is taken by re-executing one operator.
int with_autograd(lua_State* L) {
  class Guard {
   public:
    Guard() : saved_(c10::impl::tls_local_dispatch_key_set()) {
      auto open = saved_;
      open.excluded_ = open.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
      c10::impl::_force_tls_local_dispatch_key_set(open);
    }
    ~Guard() { c10::impl::_force_tls_local_dispatch_key_set(saved_); }

   private:
    c10::impl::LocalDispatchKeySet saved_;
  };
  const Guard guard;
  const at::AutoGradMode gradients(true);
  return call_block(L, 1);
}

int autocast(lua_State* L) {  // (dtype, device type, function, arguments…)
  const std::string name = script::check_string(L, 1);
  const auto dtype = dtype_from_name(name);
  if (!dtype || (*dtype != DType::bf16 && *dtype != DType::f16))
    fail(ErrorKind::model, "[tensor.autocast] dtype '{}'; expected bfloat16 or float16", name);
  class Guard {
   public:
    Guard(at::DeviceType device, at::ScalarType type)
        : device_(device),
          enabled_(at::autocast::is_autocast_enabled(device)),
          type_(at::autocast::get_autocast_dtype(device)) {
      at::autocast::set_autocast_enabled(device_, true);
      at::autocast::set_autocast_dtype(device_, type);
      at::autocast::increment_nesting();
    }
    ~Guard() {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(device_, enabled_);
      at::autocast::set_autocast_dtype(device_, type_);
    }

   private:
    at::DeviceType device_;
    bool enabled_;
    at::ScalarType type_;
  };
  const Guard guard(device_from_name(script::check_string(L, 2)).type(), to_torch(*dtype));
  return call_block(L, 3);
}

int grad_enabled(lua_State* L) {
  lua_pushboolean(L, at::GradMode::is_enabled());
  return 1;
}

int set_num_threads(lua_State* L) {
  const int64_t n = script::check_int(L, 1);
  if (n < 1) fail(ErrorKind::usage, "[tensor.threads] {} threads; expected at least 1", n);
  at::set_num_threads(static_cast<int>(n));
  return 0;
}
int get_num_threads(lua_State* L) {
  lua_pushnumber(L, at::get_num_threads());
  return 1;
}
int set_deterministic(lua_State* L) {  // (flag [, warn_only])
  at::globalContext().setDeterministicAlgorithms(script::check_boolean(L, 1),
                                                 lua_toboolean(L, 2) != 0);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return 0;
}

// --- scope
// ----------------------------------------------------------------------------------------

int push_module(lua_State* L) {
  scope_of(L).push_module(script::check_string(L, 1));
  return 0;
}
int pop_module(lua_State* L) {
  scope_of(L).pop_module();
  return 0;
}
int module_depth(lua_State* L) {
  lua_pushnumber(L, scope_of(L).module_depth());
  return 1;
}
int module_path(lua_State* L) {
  script::push_string(L, scope_of(L).module());
  return 1;
}
int reset_modules(lua_State* L) {  // ([depth])
  scope_of(L).reset_modules(static_cast<int>(script::opt_int(L, 1, 0)));
  return 0;
}
int reset_ordinals(lua_State* L) {
  scope_of(L).reset_ordinals();
  return 0;
}
int next_ordinal(lua_State* L) {  // (operator with overload)
  lua_pushnumber(L, scope_of(L).next_ordinal(script::check_string(L, 1)));
  return 1;
}
int set_random(lua_State* L) {  // ({ seed, step, micro }): fields not given stay
  luaL_checktype(L, 1, LUA_TTABLE);
  RandomContext& random = scope_of(L).random;
  random.seed = script::field_int(L, 1, "seed", random.seed);
  random.step = script::field_int(L, 1, "step", random.step);
  random.micro = script::field_int(L, 1, "micro", random.micro);
  return 0;
}
int get_random(lua_State* L) {  // → { seed, step, micro }
  const RandomContext& random = scope_of(L).random;
  lua_createtable(L, 0, 3);
  const std::pair<const char*, int64_t> fields[] = {
      {"seed", random.seed}, {"step", random.step}, {"micro", random.micro}};
  for (const auto& [name, value] : fields) {
    lua_pushnumber(L, static_cast<double>(value));
    lua_setfield(L, -2, name);
  }
  return 1;
}
int apart(lua_State* L) {  // (work) → what it returns
  struct Counters {
    Scope& scope;
    RandomContext random;
    std::unordered_map<std::string, int> ordinals;
    ~Counters() {
      scope.random = random;
      scope.set_ordinals(std::move(ordinals));
    }
  };
  Scope& scope = scope_of(L);
  const Counters before{scope, scope.random, scope.reset_ordinals()};
  lua_pushvalue(L, 1);
  script::State::call(L, 0, 1);
  return 1;
}

}  // namespace

void add_modes(lua_State* L) {
  script::set_functions(L, {{"no_grad", guard<no_grad>},
                            {"enable_grad", guard<enable_grad>},
                            {"inference_mode", guard<inference_mode>},
                            {"without_autograd", guard<without_autograd>},
                            {"with_autograd", guard<with_autograd>},
                            {"autocast", guard<autocast>},
                            {"grad_enabled", guard<grad_enabled>},
                            {"set_num_threads", guard<set_num_threads>},
                            {"get_num_threads", guard<get_num_threads>},
                            {"set_deterministic", guard<set_deterministic>},
                            {"push_module", guard<push_module>},
                            {"pop_module", guard<pop_module>},
                            {"module_depth", guard<module_depth>},
                            {"module_path", guard<module_path>},
                            {"reset_modules", guard<reset_modules>},
                            {"reset_ordinals", guard<reset_ordinals>},
                            {"next_ordinal", guard<next_ordinal>},
                            {"set_random", guard<set_random>},
                            {"get_random", guard<get_random>},
                            {"apart", guard<apart>}});
}

}  // namespace nns::tensor
