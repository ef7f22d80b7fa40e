// What the groups of one process share: MPI itself, the operations under way, and how to wait.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "comm/messages.h"

namespace nns::comm {

// Throws what MPI says of an error code.
void check_mpi(int code, const char* operation);

class MpiWorld {
 public:
  MpiWorld(const Launch& launch, const ConnectOptions& options);
  // Leaves MPI, unless an error is on its way out: the launcher then ends the other ranks, which
  // would wait in MPI_Finalize for ever.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t message_bytes() const { return message_bytes_; }

  // Steps `operation` and all that is under way until it is done: spins, then yields, then sleeps.
  // A call that takes longer than the time limit throws.
  void wait(Operation& operation, const char* name);
  // An operation that goes on while others are waited for.
  void add(std::shared_ptr<Operation> operation);
  // Steps all that is under way once.
  void step();
  // MPI must only ever see the thread that joined.
  void check_thread() const;

 private:
  std::vector<std::shared_ptr<Operation>> under_way_;
  std::thread::id owner_ = std::this_thread::get_id();
  int rank_ = 0, size_ = 1;
  int64_t message_bytes_;
  double timeout_s_;
  bool crowded_;  // more ranks than cores here: spinning would keep a peer from running
  int uncaught_;
};

// Messages over a communicator of MPI's, in pieces that MPI can count. A step never waits.
class MpiBatch : public Batch {
 public:
  MpiBatch(const MpiWorld& world, MPI_Comm comm, const char* operation);
  void send(const void* data, int64_t bytes, int peer, int tag) override;
  void recv(void* data, int64_t bytes, int peer, int tag) override;
  void broadcast(void* data, int64_t bytes, int root);
  void barrier();
  bool step() override;

 private:
  int64_t most_;
  MPI_Comm comm_;
  const char* operation_;
  std::vector<MPI_Request> requests_;
};

}  // namespace nns::comm
