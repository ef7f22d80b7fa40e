// nnscaler._C.comm: groups and collectives for Lua, and rank threads of the local backend.
#include "comm/bind.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "base/log.h"
#include "comm/backend.h"
#include "comm/group.h"
#include "comm/local.h"
#include "job/backends.h"
#include "launch/slot.h"
#include "script/library.h"
#include "script/state.h"
#include "tensor/box.h"
#include "tensor/modules.h"

namespace nns::comm {
namespace {

using job::Backend;
using launch::Operation;
using launch::Waiting;
using script::check_int;
using script::check_string;
using script::guarded;
using tensor::check_real;

constexpr const char* kCommunicator = "nnscaler.Communicator";
constexpr const char* kGroup = "nnscaler.Group";
constexpr const char* kHandle = "nnscaler.CommunicationHandle";
constexpr const char* kCurrent = "nnscaler.comm.current";

using CommunicatorPtr = std::shared_ptr<Communicator>;
using HandlePtr = std::shared_ptr<Handle>;

// Calls that the user wrote are compared between the ranks; those of a program were agreed on
// before.
struct GroupDoor {
  std::shared_ptr<Group> group;
  bool checked;
};

Group& group_at(lua_State* L) {
  const auto& door = script::check_object<GroupDoor>(L, 1, kGroup);
  door.group->set_checked(door.checked);
  return *door.group;
}
// What others are told while this rank is in the call.
Waiting in_operation(lua_State* L, Operation operation) {
  return Waiting(operation, script::check_object<GroupDoor>(L, 1, kGroup).group->note());
}
Communicator& communicator_at(lua_State* L) {
  return *script::check_object<CommunicatorPtr>(L, 1, kCommunicator);
}

Reduce reduce_at(lua_State* L, int index) {
  static constexpr const char* names[] = {"sum", "max", "min", nullptr};
  return static_cast<Reduce>(luaL_checkoption(L, index, "sum", names));
}

// --- groups
// ---------------------------------------------------------------------------------------

int group_all_reduce(lua_State* L) {  // (group, tensor [, 'sum'|'max'|'min']) → tensor, in place
  const Waiting waiting = in_operation(L, Operation::all_reduce);
  at::Tensor t = check_real(L, 2);
  group_at(L).all_reduce(t, reduce_at(L, 3));
  lua_pushvalue(L, 2);
  return 1;
}
int group_all_reduce_async(lua_State* L) {  // (group, tensor [, reduce]) → handle
  const Waiting waiting = in_operation(L, Operation::all_reduce);
  at::Tensor t = check_real(L, 2);
  script::push_object<HandlePtr>(L, kHandle, group_at(L).all_reduce_async(t, reduce_at(L, 3)));
  return 1;
}
int handle_wait(lua_State* L) {  // (handle): returns when the tensor is reduced
  const Waiting waiting(Operation::all_reduce, launch::note_group("a call under way"));
  script::check_object<HandlePtr>(L, 1, kHandle)->wait();
  return 0;
}
int handle_done(lua_State* L) {  // (handle) → whether `wait` would return at once
  lua_pushboolean(L, script::check_object<HandlePtr>(L, 1, kHandle)->done());
  return 1;
}
int group_all_gather(lua_State* L) {  // (group, tensor, dim, whole)
  const Waiting waiting = in_operation(L, Operation::all_gather);
  tensor::push(L, group_at(L).all_gather(check_real(L, 2), check_int(L, 3), check_int(L, 4)));
  return 1;
}
int group_all_gather_ahead(lua_State* L) {  // (group, tensor, dim, whole)
  const Waiting waiting = in_operation(L, Operation::all_gather);
  group_at(L).all_gather_ahead(check_real(L, 2), check_int(L, 3), check_int(L, 4));
  return 0;
}
int group_reduce_scatter(lua_State* L) {  // (group, tensor, dim)
  const Waiting waiting = in_operation(L, Operation::reduce_scatter);
  tensor::push(L, group_at(L).reduce_scatter(check_real(L, 2), check_int(L, 3)));
  return 1;
}
int group_reduce_scatter_all(lua_State* L) {  // (group, tensors, dims, empty)
  const Waiting waiting = in_operation(L, Operation::reduce_scatter);
  luaL_checktype(L, 2, LUA_TTABLE);
  std::vector<at::Tensor> addends;
  for (int i = 1; i <= static_cast<int>(lua_objlen(L, 2)); ++i) {
    lua_rawgeti(L, 2, i);
    addends.push_back(check_real(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  const auto out =
      group_at(L).reduce_scatter(addends, script::check_ints(L, 3), lua_toboolean(L, 4) != 0);
  lua_createtable(L, static_cast<int>(out.size()), 0);
  for (size_t i = 0; i < out.size(); ++i) {
    tensor::push(L, out[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int group_all_to_all(lua_State* L) {  // (group, tensor, dim, from, whole)
  const Waiting waiting = in_operation(L, Operation::all_to_all);
  tensor::push(L, group_at(L).all_to_all(check_real(L, 2), check_int(L, 3), check_int(L, 4),
                                         check_int(L, 5)));
  return 1;
}
int group_broadcast(lua_State* L) {  // (group, tensor, root) → tensor, in place
  const Waiting waiting = in_operation(L, Operation::broadcast);
  at::Tensor t = check_real(L, 2);
  group_at(L).broadcast(t, static_cast<int>(check_int(L, 3)));
  lua_pushvalue(L, 2);
  return 1;
}
int tag_at(lua_State* L, int index) {
  const int64_t tag = script::opt_int(L, index, 0);
  if (tag < 0 || tag > kGreatestTag)
    fail(ErrorKind::usage, "[comm.tag] tag {}; expected 0 to {}", tag, kGreatestTag);
  return static_cast<int>(tag);
}
int group_send(lua_State* L) {  // (group, tensor, peer [, tag]); does not wait for the receiver
  const Waiting waiting = in_operation(L, Operation::send);
  group_at(L).send(check_real(L, 2), static_cast<int>(check_int(L, 3)), tag_at(L, 4));
  return 0;
}
int group_recv(lua_State* L) {  // (group, tensor, peer [, tag]) → tensor, filled
  const Waiting waiting = in_operation(L, Operation::recv);
  at::Tensor t = check_real(L, 2);
  group_at(L).recv(t, static_cast<int>(check_int(L, 3)), tag_at(L, 4));
  lua_pushvalue(L, 2);
  return 1;
}
int group_flush(lua_State* L) {  // (group): returns when all sends were handed over
  const Waiting waiting = in_operation(L, Operation::send);
  group_at(L).flush();
  return 0;
}
int group_barrier(lua_State* L) {
  const Waiting waiting = in_operation(L, Operation::barrier);
  group_at(L).barrier();
  return 0;
}
int group_exchange(lua_State* L) {  // (group, text) → list of texts
  const Waiting waiting = in_operation(L, Operation::exchange);
  const auto all = group_at(L).exchange(check_string(L, 2));
  lua_createtable(L, static_cast<int>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    script::push_string(L, all[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}
int group_size(lua_State* L) {
  lua_pushinteger(L, group_at(L).size());
  return 1;
}
int group_position(lua_State* L) {
  lua_pushinteger(L, group_at(L).position());
  return 1;
}
int group_ranks(lua_State* L) {
  const auto& ranks = group_at(L).ranks();
  script::push_ints(L, {ranks.begin(), ranks.end()});
  return 1;
}
int group_bytes_sent(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(group_at(L).bytes_sent()));
  return 1;
}

// --- communicators
// --------------------------------------------------------------------------------

int communicator_rank(lua_State* L) {
  lua_pushinteger(L, communicator_at(L).rank());
  return 1;
}
int communicator_size(lua_State* L) {
  lua_pushinteger(L, communicator_at(L).size());
  return 1;
}
int communicator_backend(lua_State* L) {
  script::push_string(L, communicator_at(L).backend());
  return 1;
}
int communicator_group(lua_State* L) {  // (communicator, list of ranks [, {checked=true}])
  Communicator& communicator = communicator_at(L);
  std::vector<int> ranks;
  for (int64_t r : script::check_ints(L, 2)) {
    if (r < 0 || r >= communicator.size())
      fail(ErrorKind::usage, "[comm.group] rank {}; expected 0 to {}", r, communicator.size() - 1);
    ranks.push_back(static_cast<int>(r));
  }
  std::sort(ranks.begin(), ranks.end());
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
    fail(ErrorKind::usage, "[comm.group] a rank is listed twice");
  if (!std::binary_search(ranks.begin(), ranks.end(), communicator.rank()))
    fail(ErrorKind::usage, "[comm.group] rank {} is not a member of the group it asks for",
         communicator.rank());
  const bool checked = !lua_istable(L, 3) || script::field_boolean(L, 3, "checked", true);
  script::push_object<GroupDoor>(L, kGroup, {communicator.group(std::move(ranks)), checked});
  return 1;
}

int current(lua_State* L) {  // () → communicator of this rank, or nil before it has joined one
  lua_getfield(L, LUA_REGISTRYINDEX, kCurrent);
  return 1;
}

// --- joining what a launcher started
// --------------------------------------------------------------

struct Way {
  std::string (*problem)();  // why it cannot be used here, or ''
  CommunicatorPtr (*join)(const Launch&, const ConnectOptions&);
};
Way way_of(Backend backend) {
  switch (backend) {
    case Backend::local:
      return {[] { return std::string(); },
              [](const Launch&, const ConnectOptions&) -> CommunicatorPtr {
                return join_local(make_local_world(1), 0);
              }};
    case Backend::gloo:
      return {gloo_problem, connect_gloo};
    case Backend::mpi:
      return {mpi_problem, connect_mpi};
    case Backend::nccl:
      return {nccl_problem, connect_nccl};
  }
  fail(ErrorKind::internal, "[comm.backend] {} has no way to join", job::name_of(backend));
}

// Where the mpi back end was chosen for lack of a word, and is not there: gloo, if an address says
// where to meet (the supervisor of -n gives one). Else mpi, which says what is missing.
Backend usable(Backend chosen, const std::string& wanted, int rank) {
  const bool told = wanted == job::name_of(Backend::mpi);
  if (chosen != Backend::mpi || told || std::getenv("MASTER_ADDR") == nullptr) return chosen;
  const std::string problem = mpi_problem();
  if (problem.empty() || !gloo_problem().empty()) return chosen;
  if (rank == 0)
    log::warning("nnscaler.comm",
                 "the mpi back end cannot be used, so ranks are joined by gloo: {}", problem);
  return Backend::gloo;
}

// ([{ backend='auto', device='cpu', timeout_s=600, message_bytes=2^30 }]) → communicator, which
// becomes the current one. A process joins once: a second call gives what the first gave.
int connect(lua_State* L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  const std::string wanted = script::field_string(L, 1, "backend", "auto");
  const Launch me = launch::read_launch();
  const c10::Device device(script::field_string(L, 1, "device", "cpu"));
  const Backend backend = usable(
      choose_backend(wanted, me, launch::process_environment(), device.is_cuda()), wanted, me.rank);
  const std::string name = job::name_of(backend);
  lua_getfield(L, LUA_REGISTRYINDEX, kCurrent);
  if (!lua_isnil(L, -1)) {
    const auto& known = script::check_object<CommunicatorPtr>(L, -1, kCommunicator);
    if (wanted != "auto" && known->backend() != name)
      fail(ErrorKind::usage, "[comm.connect] this process has joined by '{}'; '{}' is too late",
           known->backend(), name);
    return 1;
  }
  ConnectOptions options;
  options.timeout_s = script::field_number(L, 1, "timeout_s", options.timeout_s);
  options.join_timeout_s = script::field_number(L, 1, "join_timeout_s", options.timeout_s);
  options.message_bytes = script::field_int(L, 1, "message_bytes", options.message_bytes);
  options.gpu = device.has_index() ? device.index() : 0;
  if (!(options.timeout_s > 0))
    fail(ErrorKind::usage, "[comm.connect] timeout_s is {}; expected a time above 0",
         options.timeout_s);
  if (options.message_bytes < 1 || options.message_bytes > INT32_MAX)
    fail(ErrorKind::usage, "[comm.connect] message_bytes is {}; expected 1 to {}",
         options.message_bytes, INT32_MAX);
  CommunicatorPtr communicator = way_of(backend).join(me, options);
  log::info("nnscaler.comm", "{} ranks joined by {}, started by {}; {} on this host", me.size, name,
            me.launcher, me.local_size);
  script::push_object<CommunicatorPtr>(L, kCommunicator, std::move(communicator));
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, kCurrent);
  return 1;
}

int backends(lua_State* L) {  // () → list of { name=, problem= }: why it cannot be used, or ''
  lua_createtable(L, static_cast<int>(job::kBackends.size()), 0);
  for (size_t i = 0; i < job::kBackends.size(); ++i) {
    const auto backend = static_cast<Backend>(i);
    lua_createtable(L, 0, 2);
    script::push_string(L, job::name_of(backend));
    lua_setfield(L, -2, "name");
    script::push_string(L, way_of(backend).problem());
    lua_setfield(L, -2, "problem");
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// --- rank threads
// ---------------------------------------------------------------------------------

struct RankResult {
  std::string text;
  std::exception_ptr error;
};

void run_rank(const std::shared_ptr<LocalWorld>& world, int rank, int size, int threads,
              const std::string& module, const std::string& argument, RankResult& result) {
  CommunicatorPtr communicator = join_local(world, rank);
  try {
    log::set_rank(rank, size);
    at::set_num_threads(threads);
    script::State state;
    lua_State* L = state.raw();
    script::open_torch(L);
    set_current(L, communicator);
    state.require(module);
    script::push_string(L, argument);
    state.call(1, 1);
    size_t n = 0;
    const char* text = lua_tolstring(L, -1, &n);
    if (text != nullptr) result.text.assign(text, n);
  } catch (const Error& e) {
    result.error = std::current_exception();
    give_up(*world, rank, e.message());
  } catch (const std::exception& e) {
    result.error = std::current_exception();
    give_up(*world, rank, e.what());
  }
}

// Whether a rank failed because it could not communicate.
bool is_consequence(const RankResult& result) {
  try {
    std::rethrow_exception(result.error);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::communication;
  } catch (...) {
    return false;
  }
}

int run_local(lua_State* L) {  // (ranks, module, argument text) → list of result texts
  const int size = static_cast<int>(check_int(L, 1));
  const std::string module = check_string(L, 2), argument = script::opt_string(L, 3, "");
  if (size < 1 || size > 256)
    fail(ErrorKind::usage, "[comm.local] {} ranks; expected 1 to 256", size);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto world = make_local_world(size);
  std::vector<RankResult> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      run_rank(world, r, size, std::max(1, cores / size), module, argument,
               results[static_cast<size_t>(r)]);
    });
  for (auto& t : threads) t.join();
  // The rank that failed by itself speaks; the others only gave up after it.
  if (int first = failed_rank(*world); first >= 0) {
    for (int r = 0; r < size && is_consequence(results[static_cast<size_t>(first)]); ++r)
      if (results[static_cast<size_t>(r)].error && !is_consequence(results[static_cast<size_t>(r)]))
        first = r;
    std::rethrow_exception(results[static_cast<size_t>(first)].error);
  }
  lua_createtable(L, size, 0);
  for (int r = 0; r < size; ++r) {
    script::push_string(L, results[static_cast<size_t>(r)].text);
    lua_rawseti(L, -2, r + 1);
  }
  return 1;
}

int open_module(lua_State* L) {
  script::make_type<GroupDoor>(L, kGroup,
                               {{"all_reduce", guarded<group_all_reduce>},
                                {"all_reduce_async", guarded<group_all_reduce_async>},
                                {"all_gather", guarded<group_all_gather>},
                                {"all_gather_ahead", guarded<group_all_gather_ahead>},
                                {"reduce_scatter", guarded<group_reduce_scatter>},
                                {"reduce_scatter_all", guarded<group_reduce_scatter_all>},
                                {"all_to_all", guarded<group_all_to_all>},
                                {"broadcast", guarded<group_broadcast>},
                                {"send", guarded<group_send>},
                                {"recv", guarded<group_recv>},
                                {"flush", guarded<group_flush>},
                                {"barrier", guarded<group_barrier>},
                                {"exchange", guarded<group_exchange>},
                                {"size", guarded<group_size>},
                                {"position", guarded<group_position>},
                                {"ranks", guarded<group_ranks>},
                                {"bytes_sent", guarded<group_bytes_sent>}});
  script::make_type<CommunicatorPtr>(L, kCommunicator,
                                     {{"rank", guarded<communicator_rank>},
                                      {"size", guarded<communicator_size>},
                                      {"backend", guarded<communicator_backend>},
                                      {"group", guarded<communicator_group>}});
  script::make_type<HandlePtr>(L, kHandle,
                               {{"wait", guarded<handle_wait>}, {"done", guarded<handle_done>}});
  lua_createtable(L, 0, 3);
  script::set_functions(L, {{"current", guarded<current>},
                            {"connect", guarded<connect>},
                            {"backends", guarded<backends>},
                            {"run_local", guarded<run_local>}});
  return 1;
}

}  // namespace

void set_current(lua_State* L, std::shared_ptr<Communicator> communicator) {
  lua_getglobal(L, "require");
  script::push_string(L, "nnscaler._C.comm");
  script::State::call(L, 1, 0);
  script::push_object<CommunicatorPtr>(L, kCommunicator, std::move(communicator));
  lua_setfield(L, LUA_REGISTRYINDEX, kCurrent);
}

void open(lua_State* L) {
  script::preload(L, "nnscaler._C.comm", guarded<open_module>);
}

}  // namespace nns::comm
