// nnscaler._C.runtime: what generated programs call beside operators.
#include "tensor/modules.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/function.h"
#include "script/state.h"
#include "tensor/call.h"
#include "tensor/calling.h"
#include "tensor/host.h"

namespace nns::runtime {
namespace {

using script::guarded;
using tensor::Box;

// release(a, b, …): the tensors are gone; nil is skipped.
int release(lua_State* L) {
  const int n = lua_gettop(L);
  for (int i = 1; i <= n; ++i)
    if (Box* box = tensor::test_box_at(L, i)) tensor::release(*box);
  return 0;
}

// A table of gradients may have a metatable with `home(table, key)`: the tensor in which the
// gradient lies, or nil. Others become gradients as they are. With `apart` homes are in memory that
// operators do not write to: the host's.

// Bytes of gradients that were made elsewhere and copied to where they lie.
thread_local double copied = 0;

// Pushes the home of gradients[key] for the arguments 1 and 2; false, and nothing pushed, where it
// has none.
bool push_home(lua_State* L) {
  if (luaL_getmetafield(L, 1, "home") == 0) return false;
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  if (!lua_isnil(L, -1)) return true;
  lua_pop(L, 1);
  return false;
}

// into(gradients, key): where the first addend of gradients[key] is to be written; nil where there
// is an addend already, or any tensor will do.
int into(lua_State* L) {
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  lua_rawget(L, 1);
  if (!lua_isnil(L, -1)) return 0;
  if (luaL_getmetafield(L, 1, "apart") != 0) {
    if (lua_toboolean(L, -1) != 0) return 0;
    lua_pop(L, 1);
  }
  return push_home(L) ? 1 : 0;
}

// Adds to a gradient, wherever it lies.
void add_to(const at::Tensor& gradient, const at::Tensor& x) {
  gradient.add_(x.device() == gradient.device() ? x : x.to(gradient.device()));
}

// The first addend: moves it to its home, if it has one and does not lie there.
void place_first(lua_State* L, const at::Tensor& x, bool copy) {
  lua_settop(L, 3);
  const bool home = push_home(L);
  if (home) {
    const at::Tensor& place = tensor::real_of(tensor::check_box(L, -1));
    if (place.const_data_ptr() != x.const_data_ptr()) {
      place.copy_(x);
      copied += static_cast<double>(x.nbytes());
    }
  } else if (copy) {
    tensor::push(L, x.clone(at::MemoryFormat::Contiguous));
  } else {
    lua_pushvalue(L, 3);
  }
  lua_pushvalue(L, 2);
  lua_insert(L, -2);
  lua_rawset(L, 1);
  if (home && !copy) tensor::release(tensor::check_box(L, 3));
}

// accumulate(gradients, key, x): gradients[key] += x. The first x becomes the gradient itself where
// that has no home; any other is released.
int accumulate(lua_State* L) {
  Box& x = tensor::check_box(L, 3);
  lua_pushvalue(L, 2);
  lua_rawget(L, 1);
  if (lua_isnil(L, -1)) {
    place_first(L, tensor::real_of(x), false);
    return 0;
  }
  add_to(tensor::real_of(tensor::check_box(L, -1)), tensor::real_of(x));
  tensor::release(x);
  return 0;
}

// The same for a tensor that others still read.
int accumulate_copy(lua_State* L) {
  const at::Tensor& x = tensor::check_real(L, 3);
  lua_pushvalue(L, 2);
  lua_rawget(L, 1);
  if (lua_isnil(L, -1))
    place_first(L, x, true);
  else
    add_to(tensor::real_of(tensor::check_box(L, -1)), x);
  return 0;
}

// copied_bytes() → bytes of first addends that this thread has copied to their homes.
int copied_bytes(lua_State* L) {
  lua_pushnumber(L, copied);
  return 1;
}

// flat(dtype, device, shapes) → a tensor of one dimension, and a list of its parts, one after
// another in these shapes. Its elements are undefined. device: 'host' for memory apart from
// LibTorch's.
int flat(lua_State* L) {
  const auto dtype = dtype_from_name(script::check_string(L, 1));
  if (!dtype) luaL_argerror(L, 1, "expected a dtype");
  luaL_checktype(L, 3, LUA_TTABLE);
  const int n = static_cast<int>(lua_objlen(L, 3));
  std::vector<Shape> shapes;
  int64_t elements = 0;
  for (int i = 1; i <= n; ++i) {
    lua_rawgeti(L, 3, i);
    shapes.push_back(script::check_ints(L, -1));
    lua_pop(L, 1);
    elements += numel(shapes.back());
  }
  const auto type = tensor::to_torch(*dtype);
  const std::string device = script::opt_string(L, 2, "cpu");
  const at::Tensor all = device == "host"
                             ? tensor::host_empty({elements}, type)
                             : at::empty({elements}, at::TensorOptions(type).device(device));
  tensor::push(L, all);
  lua_createtable(L, n, 0);
  int64_t start = 0;
  for (int i = 0; i < n; ++i) {
    const Shape& shape = shapes[static_cast<size_t>(i)];
    tensor::push(L, all.narrow(0, start, numel(shape)).view(shape));
    lua_rawseti(L, -2, i + 1);
    start += numel(shape);
  }
  return 2;
}

// constant(bytes, dtype, shape, device): a tensor of these elements (row-major, little-endian).
int constant(lua_State* L) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, 1, &size);
  const auto dtype = dtype_from_name(script::check_string(L, 2));
  if (!dtype) luaL_argerror(L, 2, "expected a dtype");
  at::Tensor x = at::empty(script::check_ints(L, 3), at::TensorOptions(tensor::to_torch(*dtype)));
  if (x.nbytes() != size)
    fail(ErrorKind::state, "[runtime.constant] {} bytes for {}", size,
         to_string(tensor::type_of(x)));
  if (size > 0) std::memcpy(x.mutable_data_ptr(), bytes, size);
  tensor::push(L, x.to(at::Device(script::opt_string(L, 4, "cpu"))));
  return 1;
}

// run(f, …): calls f without autograd: no tape, no version counters.
int run(lua_State* L) {
  const at::AutoGradMode off(false);
  const at::AutoDispatchBelowADInplaceOrView below;
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

// --- derivative by re-execution
// --------------------------------------------------------------------

// Replaces the tensors among the values on the stack by leaves of a graph of their own.
class Leaves {
 public:
  Leaves(lua_State* L, const tensor::Overload& overload, std::vector<bool> needs)
      : L_(L), overload_(overload), needs_(std::move(needs)) {}

  void replace(int index) {
    if (Box* box = tensor::test_box_at(L_, index)) {
      tensor::push(L_, leaf(tensor::real_of(*box)));
      lua_replace(L_, index);
      return;
    }
    if (!lua_istable(L_, index)) return;
    lua_newtable(L_);
    const int copy = lua_gettop(L_);
    const int n = static_cast<int>(lua_objlen(L_, index));
    for (int i = 1; i <= n; ++i) {
      lua_rawgeti(L_, index, i);
      replace(lua_gettop(L_));
      lua_rawseti(L_, copy, i);
    }
    for (const tensor::Want& want : overload_.args) {  // keyword arguments in the schema's order
      lua_getfield(L_, index, want.name.c_str());
      if (lua_isnil(L_, -1)) {
        lua_pop(L_, 1);
        continue;
      }
      replace(lua_gettop(L_));
      lua_setfield(L_, copy, want.name.c_str());
    }
    lua_replace(L_, index);
  }

  const std::vector<at::Tensor>& wanted() const { return wanted_; }

 private:
  at::Tensor leaf(const at::Tensor& x) {
    const bool needed = next_ < needs_.size() && needs_[next_];
    ++next_;
    at::Tensor copy = x.detach();
    if (needed) {
      copy.requires_grad_(true);
      wanted_.push_back(copy);
    }
    return copy;
  }

  lua_State* L_;
  const tensor::Overload& overload_;
  std::vector<bool> needs_;
  size_t next_ = 0;
  std::vector<at::Tensor> wanted_;
};

void collect(lua_State* L, int index, std::vector<at::Tensor>& out) {
  if (Box* box = tensor::test_box_at(L, index)) {
    out.push_back(tensor::real_of(*box));
  } else if (lua_istable(L, index)) {
    const int n = static_cast<int>(lua_objlen(L, index));
    for (int i = 1; i <= n; ++i) {
      lua_rawgeti(L, index, i);
      collect(L, lua_gettop(L), out);
      lua_pop(L, 1);
    }
  } else {
    out.emplace_back();
  }
}

// Autograd as outside of `run`, on this thread only.
class AutogradOn {
 public:
  AutogradOn() : threads_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~AutogradOn() { c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_); }
  AutogradOn(const AutogradOn&) = delete;
  AutogradOn& operator=(const AutogradOn&) = delete;

 private:
  bool threads_;
  c10::impl::ForceDispatchKeyGuard keys_{
      c10::impl::tls_local_dispatch_key_set().included_,
      c10::impl::tls_local_dispatch_key_set().excluded_ - c10::autograd_dispatch_keyset -
          c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView)};
  at::AutoGradMode mode_{true};
};

// vjp(op, gradients, needs, …): executes op(…) again under autograd and returns the gradients of
// the operands that `needs` marks; a missing output gradient is false.
int vjp(lua_State* L) {
  const std::string name = script::check_string(L, 1);
  const tensor::Operator* op = tensor::find_operator(name);
  if (op == nullptr) fail(ErrorKind::state, "[runtime.vjp] there is no operator {}", name);
  std::vector<at::Tensor> gradients;
  collect(L, 2, gradients);
  std::vector<bool> needs;
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, 3)); ++i) {
    lua_rawgeti(L, 3, i);
    needs.push_back(lua_toboolean(L, -1) != 0);
    lua_pop(L, 1);
  }
  const AutogradOn on;
  Leaves leaves(L, op->overloads[0], needs);
  const int top = lua_gettop(L);
  luaL_checkstack(L, top + 8, "too many arguments");
  tensor::push_operator(L, tensor::door_of(L), *op);
  for (int i = 4; i <= top; ++i) {
    lua_pushvalue(L, i);
    leaves.replace(lua_gettop(L));
  }
  lua_call(L, top - 3, LUA_MULTRET);
  std::vector<at::Tensor> results;
  for (int i = top + 1; i <= lua_gettop(L); ++i) collect(L, i, results);
  std::vector<at::Tensor> outputs, seeds;
  for (size_t i = 0; i < results.size() && i < gradients.size(); ++i)
    if (gradients[i].defined() && results[i].defined() && results[i].requires_grad()) {
      outputs.push_back(results[i]);
      seeds.push_back(gradients[i]);
    }
  std::vector<at::Tensor> given(leaves.wanted().size());
  if (!outputs.empty())
    given = torch::autograd::grad(outputs, leaves.wanted(), seeds, std::nullopt, false, true);
  for (size_t i = 0; i < given.size(); ++i)
    tensor::push(
        L, given[i].defined() ? given[i].detach() : at::zeros_like(leaves.wanted()[i]).detach());
  return static_cast<int>(given.size());
}

int open_module(lua_State* L) {
  lua_newtable(L);
  script::set_functions(L, {{"release", tensor::guard<release>},
                            {"accumulate", tensor::guard<accumulate>},
                            {"accumulate_copy", tensor::guard<accumulate_copy>},
                            {"into", tensor::guard<into>},
                            {"copied_bytes", guarded<copied_bytes>},
                            {"flat", tensor::guard<flat>},
                            {"constant", tensor::guard<constant>},
                            {"run", tensor::guard<run>},
                            {"vjp", tensor::guard<vjp>}});
  add_function(L);
  return 1;
}

}  // namespace

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.runtime", guarded<open_module>);
}

}  // namespace nns::runtime
