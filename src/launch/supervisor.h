// `nnscaler run -n N`: starts the ranks under mpirun and stays beside them. The supervisor hears
// their beats, gives them the signals it gets, and owns the exit code.
#pragma once

#include <string>
#include <vector>

namespace nns::launch {

struct Supervision {
  int ranks = 2;
  double beat_s = 1;
  std::string program;                 // this executable
  std::vector<std::string> arguments;  // of every rank
  bool meets_by_tcp = false;           // gives the ranks MASTER_ADDR and MASTER_PORT
};

// Returns the exit code of the run: 0, that of the first rank that failed, or 128 + signal.
int supervise(const Supervision& what);

// Name of the variable that tells a rank where the supervisor listens.
inline constexpr const char* kWatchVariable = "NNSCALER_WATCH";

}  // namespace nns::launch
