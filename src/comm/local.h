// The `local` backend: ranks are threads of one process. Tests of eight ranks need no launcher.
#pragma once

#include <memory>

#include "comm/group.h"

namespace nns::comm {

// What the threads share. Made once, before they start.
class LocalWorld;
std::shared_ptr<LocalWorld> make_local_world(int size);

// The communicator of one thread.
std::unique_ptr<Communicator> join_local(std::shared_ptr<LocalWorld> world, int rank);

// The rank that gave up first, or -1.
int failed_rank(const LocalWorld& world);

}  // namespace nns::comm
