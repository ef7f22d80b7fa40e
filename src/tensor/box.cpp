// Life of tensor userdata: pushing, collecting, releasing, and stepping the Lua collector by the
// bytes that its heap does not see.
#include "tensor/box.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "script/state.h"
#include "tensor/allocator.h"
#include "tensor/door.h"

namespace nns::tensor {
namespace {

// What the boxes of one thread hold. Only that thread writes; whoever reports adds them up. The
// collector runs when dead boxes may hold 64 MiB or a quarter of what was alive after the last run.
constexpr int64_t kSlack = int64_t{64} << 20;
struct Account {
  std::atomic<int64_t> boxes{0}, bytes{0};
  int64_t collect_at = kSlack;
};

std::mutex g_accounts_mutex;
std::vector<std::unique_ptr<Account>>& accounts() {
  static auto* list = new std::vector<std::unique_ptr<Account>>;  // outlives every thread
  return *list;
}
constinit thread_local Account* t_account = nullptr;

Account& account() {
  if (t_account == nullptr) {
    const std::lock_guard lock(g_accounts_mutex);
    t_account = accounts().emplace_back(std::make_unique<Account>()).get();
  }
  return *t_account;
}

void add(std::atomic<int64_t>& counter, int64_t n) noexcept {  // of the one writer
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

int64_t total(std::atomic<int64_t> Account::* counter) {
  const std::lock_guard lock(g_accounts_mutex);
  int64_t sum = 0;
  for (const auto& one : accounts()) sum += (one.get()->*counter).load(std::memory_order_relaxed);
  return sum;
}

// What dead boxes of this thread may hold among other things. A view counts nothing, but may be all
// that keeps a storage on the CPU; the allocator knows of that.
int64_t held(const Account& own) {
  return std::max(own.bytes.load(std::memory_order_relaxed), cpu_memory().live);
}

int64_t bytes_first_held(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return 0;
  const c10::Storage& storage = tensor.storage();
  return storage.use_count() > 1 || storage.device_type() == at::kMeta
             ? 0
             : static_cast<int64_t>(storage.nbytes());
}

Box& new_box(lua_State* L, const Door& door) {
  Box* box = new (lua_newuserdata(L, sizeof(Box))) Box;
  add(account().boxes, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, door.metatable_ref);
  lua_setmetatable(L, -2);
  return *box;
}

}  // namespace

void push(lua_State* L, const Door& door, at::Tensor tensor) {
  if (!tensor.defined()) return lua_pushnil(L);
  Box& box = new_box(L, door);
  box.bytes = bytes_first_held(tensor);
  box.real = std::move(tensor);
  Account& own = account();
  if (box.bytes != 0) add(own.bytes, box.bytes);
  if (held(own) <= own.collect_at) return;
  lua_gc(L, LUA_GCCOLLECT, 0);
  const int64_t left = held(own);
  own.collect_at = left + std::max<int64_t>(kSlack, left / 4);
}

void push(lua_State* L, at::Tensor tensor) {
  push(L, door_of(L), std::move(tensor));
}

void push(lua_State* L, std::shared_ptr<Traced> traced) {
  new_box(L, door_of(L)).traced = std::move(traced);
}

void push(lua_State* L, std::shared_ptr<Parameter> parameter) {
  new_box(L, door_of(L)).parameter = std::move(parameter);
}

void release(Box& box) noexcept {
  box.real.reset();
  box.traced.reset();
  box.parameter.reset();
  if (box.bytes != 0) add(account().bytes, -box.bytes);
  box.bytes = 0;
  box.released = true;
}

// __gc: never throws, never calls into Lua code, tolerates a second call.
int collect_box(lua_State* L) noexcept {
  Box& box = *static_cast<Box*>(lua_touserdata(L, 1));
  release(box);
  add(account().boxes, -1);
  return 0;
}

Box* test_box(lua_State* L, int index) noexcept {
  return test_box_at(L, index);
}

Box& check_box(lua_State* L, int index) {
  Box* box = test_box(L, index);
  if (box == nullptr) {
    luaL_argerror(L, index, lua_pushfstring(L, "tensor expected, got %s", luaL_typename(L, index)));
  }
  return *box;
}

const at::Tensor& real_of(const Box& box) {
  if (const at::Tensor* data = data_of(box)) return *data;
  if (box.released)
    throw Error(ErrorKind::model, "[tensor.data] this tensor was released; expected a live tensor",
                "use it before `release`, or keep a clone");
  if (box.parameter)
    throw Error(
        ErrorKind::model,
        fmt::format(
            "[tensor.data] parameter '{}' ({}) has no data yet; expected a materialised one",
            box.parameter->path.empty() ? "?" : box.parameter->path,
            to_string(box.parameter->type)),
        "call model:materialize(seed), or p:materialize(seed) for one parameter, before using it");
  throw Error(
      ErrorKind::model,
      fmt::format("[tensor.data] a traced value ({}) has no data: tracing records operators "
                  "without running them",
                  to_string(type_of(box))),
      "compute with operators (aten.where instead of a branch), or move this out of forward");
}

const at::Tensor& check_real(lua_State* L, int index) {
  return real_of(check_box(L, index));
}

int64_t live_boxes() {
  return total(&Account::boxes);
}
int64_t live_bytes() {
  return total(&Account::bytes);
}

// --- types
// ------------------------------------------------------------------------------------------

c10::ScalarType to_torch(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return c10::ScalarType::Double;
    case DType::f32:
      return c10::ScalarType::Float;
    case DType::bf16:
      return c10::ScalarType::BFloat16;
    case DType::f16:
      return c10::ScalarType::Half;
    case DType::i64:
      return c10::ScalarType::Long;
    case DType::i32:
      return c10::ScalarType::Int;
    case DType::i16:
      return c10::ScalarType::Short;
    case DType::i8:
      return c10::ScalarType::Char;
    case DType::u8:
      return c10::ScalarType::Byte;
    case DType::boolean:
      return c10::ScalarType::Bool;
    case DType::c64:
      return c10::ScalarType::ComplexFloat;
    case DType::c128:
      return c10::ScalarType::ComplexDouble;
  }
  fail(ErrorKind::internal, "[tensor.dtype] no LibTorch type for {}", name_of(dtype));
}

DType from_torch(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return DType::f64;
    case c10::ScalarType::Float:
      return DType::f32;
    case c10::ScalarType::BFloat16:
      return DType::bf16;
    case c10::ScalarType::Half:
      return DType::f16;
    case c10::ScalarType::Long:
      return DType::i64;
    case c10::ScalarType::Int:
      return DType::i32;
    case c10::ScalarType::Short:
      return DType::i16;
    case c10::ScalarType::Char:
      return DType::i8;
    case c10::ScalarType::Byte:
      return DType::u8;
    case c10::ScalarType::Bool:
      return DType::boolean;
    case c10::ScalarType::ComplexFloat:
      return DType::c64;
    case c10::ScalarType::ComplexDouble:
      return DType::c128;
    default:
      fail(ErrorKind::model, "[tensor.dtype] {} is not supported", c10::toString(type));
  }
}

TensorType type_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), from_torch(tensor.scalar_type())};
}

TensorType type_of(const Box& box) {
  if (const at::Tensor* data = data_of(box)) return type_of(*data);
  if (box.traced) return box.traced->type;
  if (box.parameter) return box.parameter->type;
  real_of(box);  // throws: released
  return {};
}

}  // namespace nns::tensor
