// The `local` backend: ranks are threads of one process. Tests of eight ranks need no launcher.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"

namespace nns::comm {

// What the threads share. Made once, before they start.
class LocalWorld;
std::shared_ptr<LocalWorld> make_local_world(int size);

// The communicator of one thread.
std::unique_ptr<Communicator> join_local(std::shared_ptr<LocalWorld> world, int rank);

// The pending calls of the other ranks throw.
void give_up(LocalWorld& world, int rank, const std::string& reason);

// The rank that gave up first, or -1.
int failed_rank(const LocalWorld& world);

}  // namespace nns::comm
