// The one function of libnnscaler_mpi.so.
#pragma once

#include "comm/backend.h"

namespace nns::comm {

using MpiConnect = void(const Launch&, const ConnectOptions&, std::shared_ptr<Communicator>&);
constexpr const char* kMpiConnect = "nns_connect_mpi";

}  // namespace nns::comm
