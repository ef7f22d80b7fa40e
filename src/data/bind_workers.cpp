// Workers: threads with Lua states of their own that make micro-batches ahead of their use. What a
// state runs is a module that returns function (argument text) → function (n) → text, list of
// tensors.
#include <ATen/Parallel.h>

#include "data/prefetch.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/modules.h"

namespace nns::data {
namespace {

using script::guarded;
constexpr const char* kWorkersType = "nnscaler.Workers";

struct Made {
  std::string code;  // form of the micro-batch
  std::vector<at::Tensor> tensors;
};

// The state of one worker, made on its thread.
class Maker {
 public:
  Maker(std::string module, std::string argument)
      : module_(std::move(module)), argument_(std::move(argument)) {}

  Made make(int64_t n) {
    if (!state_) start();
    lua_State* L = state_->raw();
    make_.push(L);
    lua_pushnumber(L, static_cast<double>(n));
    state_->call(1, 2);
    Made out;
    out.code = script::check_string(L, -2);
    const auto count = lua_objlen(L, -1);
    for (size_t i = 1; i <= count; ++i) {
      lua_rawgeti(L, -1, static_cast<int>(i));
      out.tensors.push_back(tensor::check_real(L, -1));
      lua_pop(L, 1);
    }
    lua_pop(L, 2);
    return out;
  }

 private:
  void start() {
    at::set_num_threads(1);
    auto state = std::make_unique<script::State>();
    state->require(module_);
    script::push_string(state->raw(), argument_);
    state->call(1, 1);
    make_ = script::Ref::pop(state->raw());
    state_ = std::move(state);
  }

  const std::string module_, argument_;
  std::unique_ptr<script::State> state_;
  script::Ref make_;  // goes before its state
};

struct Workers {
  std::vector<std::unique_ptr<Prefetcher<Made>>> list;
  int64_t stride = 1;
};

int workers(lua_State* L) {  // (count, stride, depth, module, argument) → workers
  const int64_t count = script::check_int(L, 1), stride = script::check_int(L, 2);
  const int64_t depth = script::check_int(L, 3);
  if (count < 1 || count > 256 || stride < 1 || depth < 1)
    fail(ErrorKind::usage,
         "[data.workers] {} workers, stride {}, prefetch {}; expected 1 to 256 workers, ≥ 1 and "
         "≥ 1",
         count, stride, depth);
  Workers made;
  made.stride = stride;
  for (int64_t i = 0; i < count; ++i) {
    auto maker = std::make_shared<Maker>(script::check_string(L, 4), script::check_string(L, 5));
    made.list.push_back(std::make_unique<Prefetcher<Made>>(
        [maker](int64_t n) { return maker->make(n); }, stride * count, static_cast<size_t>(depth)));
  }
  script::push_object<Workers>(L, kWorkersType, std::move(made));
  return 1;
}

int workers_get(lua_State* L) {  // (n) → text, list of tensors
  auto& all = script::check_object<Workers>(L, 1, kWorkersType);
  const int64_t n = script::check_int(L, 2);
  if (n < 0) fail(ErrorKind::data, "[data.workers] there is no micro-batch {}", n);
  const auto who = static_cast<size_t>(n / all.stride) % all.list.size();
  Made made = all.list[who]->get(n);
  script::push_string(L, made.code);
  lua_createtable(L, static_cast<int>(made.tensors.size()), 0);
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    tensor::push(L, std::move(made.tensors[i]));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 2;
}

int open_module(lua_State* L) {
  script::make_type<Workers>(L, kWorkersType, {{"get", guarded<workers_get>}});
  lua_createtable(L, 0, 1);
  script::set_functions(L, {{"start", guarded<workers>}});
  return 1;
}

}  // namespace

void open_workers(lua_State* L) {
  script::preload(L, "nnscaler._C.workers", guarded<open_module>);
}

}  // namespace nns::data
