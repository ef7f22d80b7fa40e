// The mpi back end: groups of Open MPI ranks. All MPI calls come from the thread that joined and
// none of them waits inside MPI.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "comm/backend.h"
#include "comm/mpi/world.h"
#include "comm/staged.h"
#include "job/backends.h"

namespace nns::comm {
namespace {

class Outgoing : public Operation {
 public:
  Outgoing(std::unique_ptr<Batch> message, at::Tensor bytes)
      : bytes_(std::move(bytes)), message_(std::move(message)) {}
  bool step() override { return message_->step(); }

 private:
  at::Tensor bytes_;
  std::unique_ptr<Batch> message_;
};

class OperationHandle : public Handle {
 public:
  OperationHandle(std::shared_ptr<MpiWorld> world, std::shared_ptr<Operation> operation,
                  const char* name)
      : world_(std::move(world)), operation_(std::move(operation)), name_(name) {}
  bool done() override {
    world_->step();
    return operation_->step();
  }
  void wait() override { world_->wait(*operation_, name_); }

 private:
  std::shared_ptr<MpiWorld> world_;
  std::shared_ptr<Operation> operation_;
  const char* name_;
};

class MpiGroup : public StagedGroup {
 public:
  MpiGroup(std::shared_ptr<MpiWorld> world, std::vector<int> ranks, int position)
      : StagedGroup(std::move(ranks), position), world_(std::move(world)) {
    if (size() == 1) return;
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all), "group");
    check_mpi(MPI_Group_incl(all, size(), this->ranks().data(), &members), "group");
    // Members only: overlapping groups come up in the order of their first use on each rank.
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &comm_), "group");
    MPI_Group_free(&members);
    MPI_Group_free(&all);
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "group");
  }

  void barrier() override {
    if (size() == 1) return;
    MpiBatch meeting(*world_, comm_, "barrier");
    meeting.barrier();
    world_->wait(meeting, "barrier");
  }

 protected:
  std::unique_ptr<Batch> batch(const char* operation) override {
    return std::make_unique<MpiBatch>(*world_, comm_, operation);
  }

  void wait(Operation& operation, const char* name) override { world_->wait(operation, name); }

  void keep(std::unique_ptr<Batch> message, at::Tensor bytes) override {
    world_->add(std::make_shared<Outgoing>(std::move(message), std::move(bytes)));
  }

  std::shared_ptr<Handle> start(std::shared_ptr<Operation> operation, const char* name) override {
    world_->add(operation);
    return std::make_shared<OperationHandle>(world_, std::move(operation), name);
  }

  int64_t piece_bytes() const override { return 1 << 20; }

  void broadcast_bytes(void* data, int64_t bytes, int root) override {
    MpiBatch message(*world_, comm_, "broadcast");
    message.broadcast(data, bytes, root);
    world_->wait(message, "broadcast");
  }

 private:
  std::shared_ptr<MpiWorld> world_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const Launch& launch, const ConnectOptions& options)
      : world_(std::make_shared<MpiWorld>(launch, options)) {}

  std::string backend() const override { return job::name_of(job::Backend::mpi); }
  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }

  std::shared_ptr<Group> group(std::vector<int> ranks) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank());
    NNS_CHECK(at != ranks.end(), "rank {} is not in group {}", rank(), fmt::join(ranks, ","));
    auto& known = groups_[ranks];
    if (!known)
      known = std::make_shared<MpiGroup>(world_, ranks, static_cast<int>(at - ranks.begin()));
    return known;
  }

 private:
  std::shared_ptr<MpiWorld> world_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace
}  // namespace nns::comm

extern "C" void nns_connect_mpi(const nns::launch::Launch& launch,
                                const nns::comm::ConnectOptions& options,
                                std::shared_ptr<nns::comm::Communicator>& communicator) {
  communicator = std::make_shared<nns::comm::MpiCommunicator>(launch, options);
}
