#include "launch/launch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "job/schema.h"

namespace nns::launch {
namespace {

// Names of the variables of one launcher; an empty name is one that it does not set.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kMpirun{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
// A batch script has SLURM_PROCID and SLURM_NTASKS as well, but is one process: only srun sets
// those of a step.
constexpr Names kSlurm{"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""};

std::optional<int> number(const Environment& environment, const std::string& name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0)
    fail(ErrorKind::usage, "[comm.launch] {} is '{}'; expected an integer from 0", name, *text);
  return value;
}

void check_below(const char* name, int value, const char* limit_name, int limit) {
  if (value >= limit)
    fail(ErrorKind::usage, "[comm.launch] {} is {}, but {} is {}; expected a rank below it", name,
         value, limit_name, limit);
}

// Ranks on this host of "2(x3),1": the list of tasks on each node of a Slurm step.
int slurm_local_size(const Environment& environment, int size) {
  const auto list = environment("SLURM_STEP_TASKS_PER_NODE");
  const auto node = number(environment, "SLURM_NODEID");
  if (!list || !node) return size;
  const char* at = list->data();
  const char* const end = at + list->size();
  int first = 0;
  while (at < end) {
    int tasks = 0, nodes = 1;
    at = std::from_chars(at, end, tasks).ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      at = std::from_chars(at + 2, end, nodes).ptr;
      if (at < end) ++at;  // the parenthesis
    }
    if (tasks < 1 || nodes < 1 || (at < end && *at != ',')) break;
    if (*node < first + nodes) return tasks;
    first += nodes;
    if (at < end) ++at;
  }
  fail(ErrorKind::usage,
       "[comm.launch] SLURM_STEP_TASKS_PER_NODE is '{}', which says nothing of SLURM_NODEID {}",
       *list, *node);
}

std::optional<Launch> read(const Environment& environment, const Names& names) {
  const auto rank = number(environment, names.rank), size = number(environment, names.size);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size)
    fail(ErrorKind::usage, "[comm.launch] {} is set, but {} is not; expected both",
         rank ? names.rank : names.size, rank ? names.size : names.rank);
  check_below(names.rank, *rank, names.size, *size);
  Launch launch{names.launcher, *rank, *size, *rank, *size};
  if (const auto local = number(environment, names.local_rank)) {
    launch.local_rank = *local;
    if (*names.local_size == '\0')
      launch.local_size = slurm_local_size(environment, *size);
    else if (const auto all = number(environment, names.local_size))
      launch.local_size = *all;
    check_below(names.local_rank, *local, *names.local_size != '\0' ? names.local_size : names.size,
                launch.local_size);
  }
  return launch;
}

// Two launchers, one inside the other, may both speak; then they must say the same.
void check_equal(const char* one, int a, const char* other, int b) {
  if (a != b)
    throw Error(ErrorKind::usage,
                fmt::format("[comm.launch] {} is {}, but {} is {}; which one counts is not clear",
                            one, a, other, b),
                "unset the variables of the launcher that does not start the ranks");
}

}  // namespace

Launch read_launch(const Environment& environment) {
  const auto mpirun = read(environment, kMpirun), torchrun = read(environment, kTorchrun);
  if (mpirun && torchrun) {
    check_equal(kMpirun.rank, mpirun->rank, kTorchrun.rank, torchrun->rank);
    check_equal(kMpirun.size, mpirun->size, kTorchrun.size, torchrun->size);
  }
  if (mpirun) return *mpirun;
  if (torchrun) {
    Launch launch = *torchrun;
    if (!environment("TORCHELASTIC_RUN_ID")) launch.launcher = "environment";
    return launch;
  }
  // Under srun each host may run one mpirun or torchrun: theirs are the ranks then. A batch
  // script's own SLURM_PROCID is not one.
  if (environment(kSlurm.size) && environment(kSlurm.rank)) return *read(environment, kSlurm);
  return {};
}

Launch read_launch() {
  return read_launch(process_environment());
}

job::Backend choose_backend(const std::string& wanted, const Launch& launch,
                            const Environment& environment, bool on_gpu) {
  using job::Backend;
  if (wanted.empty() || wanted == "auto") {
    if (on_gpu && launch.size > 1) return Backend::nccl;
    if (launch.launcher == "mpirun") return Backend::mpi;
    if (launch.launcher == "torchrun" || launch.launcher == "environment") return Backend::gloo;
    if (launch.launcher == "slurm")
      return environment("MASTER_ADDR") ? Backend::gloo : Backend::mpi;
    return Backend::local;
  }
  const auto* found = std::find(job::kBackends.begin(), job::kBackends.end(), wanted);
  if (found == job::kBackends.end())
    fail(ErrorKind::usage, "[comm.backend] unknown back end '{}'; expected one of auto, {}", wanted,
         fmt::join(job::kBackends, ", "));
  const auto chosen = static_cast<Backend>(found - job::kBackends.begin());
  if (chosen == Backend::local && launch.size > 1)
    fail(ErrorKind::usage,
         "[comm.backend] 'local' joins threads of one process, but {} processes were started ({}); "
         "expected mpi, gloo or nccl",
         launch.size, launch.launcher);
  if (on_gpu && launch.size > 1 && chosen != Backend::nccl)
    fail(ErrorKind::usage,
         "[comm.backend] '{}' moves the memory of hosts, but the ranks compute on GPUs; expected "
         "nccl",
         wanted);
  return chosen;
}

std::string host_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  std::error_code unknown;  // leaves the path empty
  return id + " " + std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

}  // namespace nns::launch
