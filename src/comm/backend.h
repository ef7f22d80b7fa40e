// The back ends that join processes. Each has a folder; one that the build did not find is a stub
// there whose function says what to install.
#pragma once

#include <memory>

#include "comm/group.h"
#include "launch/launch.h"

namespace nns::comm {

using launch::Launch;

struct ConnectOptions {
  double timeout_s = 600;             // of one call
  double join_timeout_s = 600;        // of the meeting
  int64_t message_bytes = 1LL << 30;  // longer messages are sent in pieces
  int gpu = 0;                        // of this rank, where the back end joins GPUs
};

std::shared_ptr<Communicator> connect_mpi(const Launch& launch, const ConnectOptions& options);
// These meet at MASTER_ADDR:MASTER_PORT.
std::shared_ptr<Communicator> connect_gloo(const Launch& launch, const ConnectOptions& options);
std::shared_ptr<Communicator> connect_nccl(const Launch& launch, const ConnectOptions& options);

// Why the back end cannot be used here, or "".
std::string mpi_problem();
std::string gloo_problem();
std::string nccl_problem();

}  // namespace nns::comm
