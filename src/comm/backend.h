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
};

std::shared_ptr<Communicator> connect_mpi(const Launch& launch, const ConnectOptions& options);
// Meets at MASTER_ADDR:MASTER_PORT.
std::shared_ptr<Communicator> connect_gloo(const Launch& launch, const ConnectOptions& options);

}  // namespace nns::comm
