// Who started this process among how many: what mpirun, torchrun, Slurm or the user put into the
// environment, and the back end that follows from it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "job/backends.h"

namespace nns::launch {

struct Launch {
  std::string launcher = "none";  // none, mpirun, torchrun, environment or slurm
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
};

using Environment = std::function<std::optional<std::string>(const std::string&)>;

// Throws a usage error that names the variables when they contradict each other.
Launch read_launch(const Environment& environment);
Launch read_launch();  // of this process

// The back end by name: "auto" (or "") gives mpi under mpirun, gloo under torchrun and where the
// variables were set by hand, under Slurm gloo where MASTER_ADDR is set and mpi elsewhere, else
// local; nccl where several ranks compute on GPUs. Throws when `wanted` is unknown or cannot join
// what was started.
job::Backend choose_backend(const std::string& wanted, const Launch& launch,
                            const Environment& environment, bool on_gpu = false);

// Text that two processes share when they run on one host and see the same network.
std::string host_id();

// The variables of this process.
Environment process_environment();

}  // namespace nns::launch
