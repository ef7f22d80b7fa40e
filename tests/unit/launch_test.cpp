// What the variables of mpirun, torchrun and Slurm say, and what is said when they contradict.
#include <catch2/catch.hpp>

#include <map>

#include "base/error.h"
#include "launch/launch.h"

using namespace nns;
using namespace nns::launch;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    if (at == variables.end()) return std::nullopt;
    return at->second;
  };
}

std::string refusal(const Variables& variables) {
  try {
    read_launch(environment(variables));
  } catch (const Error& e) {
    return e.message();
  }
  return "accepted";
}

std::string backend(const std::string& wanted, const Launch& launch,
                    const Variables& variables = {}) {
  try {
    return job::name_of(choose_backend(wanted, launch, environment(variables)));
  } catch (const Error& e) {
    return e.message();
  }
}

void check(const Launch& launch, const std::string& launcher, int rank, int size, int local_rank,
           int local_size) {
  CHECK(launch.launcher == launcher);
  CHECK(launch.rank == rank);
  CHECK(launch.size == size);
  CHECK(launch.local_rank == local_rank);
  CHECK(launch.local_size == local_size);
}

const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "5"},
                        {"OMPI_COMM_WORLD_SIZE", "8"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("each launcher is read from its own variables") {
  check(read_launch(environment({})), "none", 0, 1, 0, 1);
  check(read_launch(environment(kMpirun)), "mpirun", 5, 8, 1, 4);
  check(read_launch(environment({{"RANK", "3"},
                                 {"WORLD_SIZE", "4"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"TORCHELASTIC_RUN_ID", "x"}})),
        "torchrun", 3, 4, 1, 2);
  check(read_launch(environment({{"RANK", "1"}, {"WORLD_SIZE", "2"}})), "environment", 1, 2, 1, 2);
}

TEST_CASE("a Slurm step tells the ranks of each host") {
  const Variables step{{"SLURM_PROCID", "6"},
                       {"SLURM_STEP_NUM_TASKS", "7"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"}};
  check(read_launch(environment(with(step, {{"SLURM_NODEID", "2"}}))), "slurm", 6, 7, 0, 1);
  check(read_launch(environment(with(step, {{"SLURM_NODEID", "1"}, {"SLURM_PROCID", "3"}}))),
        "slurm", 3, 7, 0, 3);
  CHECK(refusal(with(step, {{"SLURM_NODEID", "3"}})) ==
        "[comm.launch] SLURM_STEP_TASKS_PER_NODE is '3(x2),1', which says nothing of SLURM_NODEID "
        "3");
  // A batch script is one process.
  check(read_launch(environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})), "none", 0, 1, 0,
        1);
  // mpirun inside a step starts the ranks.
  check(read_launch(environment(with(kMpirun, step))), "mpirun", 5, 8, 1, 4);
}

TEST_CASE("variables that contradict are named") {
  CHECK(refusal({{"RANK", "1"}}) ==
        "[comm.launch] RANK is set, but WORLD_SIZE is not; expected both");
  CHECK(refusal({{"WORLD_SIZE", "2"}}) ==
        "[comm.launch] WORLD_SIZE is set, but RANK is not; expected both");
  CHECK(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) ==
        "[comm.launch] RANK is 2, but WORLD_SIZE is 2; expected a rank below it");
  CHECK(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}) ==
        "[comm.launch] RANK is 'one'; expected an integer from 0");
  CHECK(refusal(with(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "8"}})) ==
        "[comm.launch] OMPI_COMM_WORLD_RANK is 5, but RANK is 0; which one counts is not clear");
  CHECK(refusal(with(kMpirun, {{"RANK", "5"}, {"WORLD_SIZE", "16"}})) ==
        "[comm.launch] OMPI_COMM_WORLD_SIZE is 8, but WORLD_SIZE is 16; which one counts is not "
        "clear");
  CHECK(refusal(with(kMpirun, {{"RANK", "5"}, {"WORLD_SIZE", "8"}})) == "accepted");
  CHECK(refusal(
            {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
        "[comm.launch] LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2; expected a rank below it");
}

TEST_CASE("the back end follows from the launcher") {
  CHECK(backend("auto", {}) == "local");
  CHECK(backend("", {"mpirun", 0, 2, 0, 2}) == "mpi");
  CHECK(backend("auto", {"torchrun", 0, 2, 0, 2}) == "gloo");
  CHECK(backend("auto", {"environment", 0, 2, 0, 2}) == "gloo");
  CHECK(backend("auto", {"slurm", 0, 2, 0, 2}) == "mpi");
  CHECK(backend("auto", {"slurm", 0, 2, 0, 2}, {{"MASTER_ADDR", "a"}}) == "gloo");
  CHECK(backend("gloo", {"mpirun", 0, 2, 0, 2}) == "gloo");
  CHECK(backend("smoke", {}) ==
        "[comm.backend] unknown back end 'smoke'; expected one of auto, local, gloo, mpi, nccl");
  CHECK(backend("local", {"mpirun", 0, 2, 0, 2}) ==
        "[comm.backend] 'local' joins threads of one process, but 2 processes were started "
        "(mpirun); expected mpi, gloo or nccl");
  const auto on_gpu = [](const std::string& wanted, const Launch& launch) {
    try {
      return job::name_of(
          choose_backend(wanted, launch, [](const std::string&) { return std::nullopt; }, true));
    } catch (const Error& e) {
      return std::string(e.message());
    }
  };
  CHECK(on_gpu("auto", {"mpirun", 0, 2, 0, 2}) == "nccl");
  CHECK(on_gpu("auto", {"torchrun", 0, 2, 0, 2}) == "nccl");
  CHECK(on_gpu("auto", {"mpirun", 0, 1, 0, 1}) == "mpi");
  CHECK(on_gpu("nccl", {"slurm", 0, 2, 0, 2}) == "nccl");
  CHECK(on_gpu("gloo", {"mpirun", 0, 2, 0, 2}) ==
        "[comm.backend] 'gloo' moves the memory of hosts, but the ranks compute on GPUs; expected "
        "nccl");
}
