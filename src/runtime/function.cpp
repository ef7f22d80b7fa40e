// A generated program as one function of LibTorch's autograd, for modules inside hand-written
// models: forward has run, its results get a history whose backward calls Lua.
#include "runtime/function.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <unordered_set>

#include "script/state.h"
#include "tensor/calling.h"

namespace nns::runtime {
namespace {

using torch::autograd::variable_list;

// A tensor that backward reads: it must not be written before.
struct Watched {
  c10::VariableVersion counter;
  uint32_t version;
  std::string what;
};

class ProgramNode : public torch::autograd::Node {
 public:
  ProgramNode(torch::autograd::edge_list&& edges, script::Ref backward, lua_State* L,
              std::string label)
      : Node(std::move(edges)),
        backward_(std::move(backward)),
        main_(script::State::of(L).raw()),
        label_(std::move(label)) {}

  variable_list apply(variable_list&& seeds) override {
    if (at::GradMode::is_enabled())
      throw Error(
          ErrorKind::usage,
          fmt::format("[library.backward] gradients of gradients of {}: create_graph is not "
                      "supported by parallel modules",
                      label_),
          "leave out create_graph");
    if (!backward_)
      throw Error(ErrorKind::usage,
                  fmt::format("[library.backward] backward through {} a second time; expected one "
                              "backward for each forward",
                              label_),
                  "run forward again");
    for (const Watched& w : watched_)
      if (w.counter.current_version() != w.version)
        throw Error(ErrorKind::usage,
                    fmt::format("[library.backward] {} of {} was written between forward and "
                                "backward, which reads it",
                                w.what, label_),
                    "write to a clone, or after backward");
    lua_State* running = tensor::door_of(main_).running;  // where backward was called
    lua_State* L = running != nullptr ? running : main_;
    luaL_checkstack(L, 8, "backward");
    const script::Ref backward = std::move(backward_);
    const int top = lua_gettop(L);
    backward.push(L);
    lua_createtable(L, static_cast<int>(seeds.size()), 0);
    for (size_t i = 0; i < seeds.size(); ++i) {
      if (!seeds[i].defined()) seeds[i] = input_metadata(i).zeros_like();
      tensor::push(L, seeds[i].contiguous());
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
    script::State::call(L, 1, 1);
    variable_list gradients(num_outputs());
    for (size_t i = 0; i < gradients.size(); ++i) {
      lua_rawgeti(L, -1, static_cast<int>(i + 1));
      if (tensor::test_box(L, -1) != nullptr) gradients[i] = tensor::check_real(L, -1).detach();
      lua_pop(L, 1);
    }
    lua_settop(L, top);
    return gradients;
  }

  void watch(const at::Tensor& x, std::string what) {
    if (x.is_inference()) return;
    const auto& counter = x.unsafeGetTensorImpl()->version_counter();
    watched_.push_back({counter, counter.current_version(), std::move(what)});
  }

  std::string name() const override { return "Parallel<" + label_ + ">"; }

 private:
  script::Ref backward_;
  lua_State* main_;
  std::string label_;
  std::vector<Watched> watched_;
};

std::vector<at::Tensor> tensors_at(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<at::Tensor> list(lua_objlen(L, index));
  for (size_t i = 0; i < list.size(); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i + 1));
    list[i] = tensor::check_real(L, -1);
    lua_pop(L, 1);
  }
  return list;
}

// Storages of all tensors in nested tables.
void find_storages(lua_State* L, int index, std::unordered_set<const void*>& out) {
  luaL_checkstack(L, 4, "saved tensors nested too deeply");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_istable(L, -1)) {
      find_storages(L, lua_gettop(L), out);
    } else if (const tensor::Box* box = tensor::test_box(L, -1)) {
      if (const at::Tensor* x = tensor::data_of(*box); x != nullptr && x->has_storage())
        out.insert(x->storage().unsafeGetStorageImpl());
    }
    lua_pop(L, 1);
  }
}

// (label, backward, inputs, names, results, saved) → results with a history. backward(seeds) gets a
// gradient for each result and returns one for each input, false where there is none. `names` tell
// inputs in messages; `saved` (nested tables) are tensors that backward reads.
int connect(lua_State* L) {
  const std::string label = script::check_string(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  const auto inputs = tensors_at(L, 3), results = tensors_at(L, 5);
  std::unordered_set<const void*> saved;
  find_storages(L, 6, saved);
  lua_pushvalue(L, 2);
  const auto node = c10::make_intrusive<ProgramNode>(torch::autograd::collect_next_edges(inputs),
                                                     script::Ref::pop(L), L, label);
  for (size_t i = 0; i < inputs.size(); ++i) {
    lua_rawgeti(L, 4, static_cast<int>(i + 1));
    const std::string name = script::check_string(L, -1);
    lua_pop(L, 1);
    const bool parameter = inputs[i].is_leaf() && name.starts_with("parameter");
    if (parameter || saved.contains(inputs[i].storage().unsafeGetStorageImpl()))
      node->watch(inputs[i], name);
  }
  lua_createtable(L, static_cast<int>(results.size()), 0);
  for (size_t i = 0; i < results.size(); ++i) {
    at::Tensor result;
    {  // no view of anything for autograd, which would refuse writes
      const at::AutoDispatchBelowADInplaceOrView below;
      result = results[i].detach();
    }
    torch::autograd::set_history(result, node);
    if (saved.contains(result.storage().unsafeGetStorageImpl()))
      node->watch(result, fmt::format("result {}", i + 1));
    tensor::push(L, std::move(result));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

}  // namespace

void add_function(lua_State* L) {
  script::set_functions(L, {{"connect", tensor::guard<connect>}});
}

}  // namespace nns::runtime
