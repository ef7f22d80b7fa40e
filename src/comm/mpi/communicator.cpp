// The mpi back end: groups of Open MPI ranks. All MPI calls come from the thread that joined and
// none of them waits inside MPI.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "comm/backend.h"
#include "comm/mpi/all_reduce.h"
#include "comm/mpi/world.h"
#include "comm/staged.h"

namespace nns::comm {
namespace {

// Tags: 0 are the moves below; then all-reduces in turn, so that rounds of several under way do not
// meet; then those of send and recv.
constexpr int kTagMove = 0, kTagFirst = 1, kTagPairs = 8192, kTagSend = kTagFirst + 2 * kTagPairs;

// A message that nobody waits for.
class Outgoing : public Operation {
 public:
  Outgoing(at::Tensor message, std::vector<MPI_Request> requests)
      : message_(std::move(message)), requests_(std::move(requests)) {}
  bool step() override { return test_all(requests_, "send"); }

 private:
  at::Tensor message_;
  std::vector<MPI_Request> requests_;
};

class AllReduceHandle : public Handle {
 public:
  AllReduceHandle(std::shared_ptr<MpiWorld> world, std::shared_ptr<AllReduce> operation,
                  at::Tensor tensor)
      : world_(std::move(world)), operation_(std::move(operation)), tensor_(std::move(tensor)) {}
  bool done() override {
    world_->step();
    return operation_->done();
  }
  void wait() override { world_->wait(*operation_, "all_reduce"); }

 private:
  std::shared_ptr<MpiWorld> world_;
  std::shared_ptr<AllReduce> operation_;
  at::Tensor tensor_;
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
    world_->check_thread();
    std::vector<MPI_Request> requests(1);
    check_mpi(MPI_Ibarrier(comm_, requests.data()), "barrier");
    world_->wait(requests, "barrier");
  }

 protected:
  void do_all_reduce(at::Tensor& tensor, Reduce reduce) override {
    world_->check_thread();
    AllReduce operation(comm_, position(), size(), next_tag(), tensor.mutable_data_ptr(),
                        tensor.numel(), tensor.scalar_type(), reduce);
    world_->wait(operation, "all_reduce");
    count(operation.bytes_to_send());
  }

  std::shared_ptr<Handle> start_all_reduce(at::Tensor& tensor, Reduce reduce) override {
    world_->check_thread();
    auto operation = std::make_shared<AllReduce>(comm_, position(), size(), next_tag(),
                                                 tensor.mutable_data_ptr(), tensor.numel(),
                                                 tensor.scalar_type(), reduce);
    world_->add(operation);
    count(operation->bytes_to_send());
    return std::make_shared<AllReduceHandle>(world_, std::move(operation), tensor);
  }

  void gather_bytes(void* all, const void* one, int64_t bytes) override {
    char* const to = static_cast<char*>(all);
    std::memcpy(to + position() * bytes, one, static_cast<size_t>(bytes));
    move_between_all(
        "all_gather", [&](int k) { return to + k * bytes; },
        [&](int) { return static_cast<const char*>(one); }, bytes);
  }

  void swap_bytes(void* out, const void* in, int64_t bytes) override {
    char* const to = static_cast<char*>(out);
    const char* const from = static_cast<const char*>(in);
    std::memcpy(to + position() * bytes, from + position() * bytes, static_cast<size_t>(bytes));
    move_between_all(
        "all_to_all", [&](int k) { return to + k * bytes; },
        [&](int k) { return from + k * bytes; }, bytes);
  }

  void broadcast_bytes(void* data, int64_t bytes, int root) override {
    world_->check_thread();
    std::vector<MPI_Request> requests;
    for_pieces(bytes, [&](int64_t start, int length) {
      check_mpi(MPI_Ibcast(static_cast<char*>(data) + start, length, MPI_BYTE, root, comm_,
                           &requests.emplace_back()),
                "broadcast");
    });
    world_->wait(requests, "broadcast");
  }

  void send_bytes(at::Tensor message, int peer, int tag) override {
    world_->check_thread();
    std::vector<MPI_Request> requests;
    post_send(requests, "send", static_cast<const char*>(message.const_data_ptr()),
              message.numel() * static_cast<int64_t>(message.element_size()), peer, kTagSend + tag);
    world_->add(std::make_shared<Outgoing>(std::move(message), std::move(requests)));
  }

  void recv_bytes(void* data, int64_t bytes, int peer, int tag) override {
    world_->check_thread();
    std::vector<MPI_Request> requests;
    post_recv(requests, "recv", static_cast<char*>(data), bytes, peer, kTagSend + tag);
    world_->wait(requests, "recv");
  }

 private:
  int next_tag() {
    const int tag = kTagFirst + 2 * turn_;
    turn_ = (turn_ + 1) % kTagPairs;
    return tag;
  }

  template <class F>
  void for_pieces(int64_t bytes, F piece) {
    for (int64_t start = 0; start < bytes; start += world_->message_bytes())
      piece(start, static_cast<int>(std::min(world_->message_bytes(), bytes - start)));
  }

  void post_send(std::vector<MPI_Request>& requests, const char* name, const char* data,
                 int64_t bytes, int peer, int tag) {
    for_pieces(bytes, [&](int64_t start, int length) {
      check_mpi(
          MPI_Isend(data + start, length, MPI_BYTE, peer, tag, comm_, &requests.emplace_back()),
          name);
    });
  }
  void post_recv(std::vector<MPI_Request>& requests, const char* name, char* data, int64_t bytes,
                 int peer, int tag) {
    for_pieces(bytes, [&](int64_t start, int length) {
      check_mpi(
          MPI_Irecv(data + start, length, MPI_BYTE, peer, tag, comm_, &requests.emplace_back()),
          name);
    });
  }

  // Receives to(k) from each other rank k and sends it from(k).
  template <class To, class From>
  void move_between_all(const char* name, To to, From from, int64_t bytes) {
    world_->check_thread();
    std::vector<MPI_Request> requests;
    for (int i = 1; i < size(); ++i) {
      const int k = (position() + size() - i) % size();
      post_recv(requests, name, to(k), bytes, k, kTagMove);
    }
    for (int i = 1; i < size(); ++i) {
      const int k = (position() + i) % size();
      post_send(requests, name, from(k), bytes, k, kTagMove);
    }
    world_->wait(requests, name);
  }

  std::shared_ptr<MpiWorld> world_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int turn_ = 0;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const Launch& launch, const ConnectOptions& options)
      : world_(std::make_shared<MpiWorld>(launch, options)) {}

  std::string backend() const override { return "mpi"; }
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

  void abort(const std::string& reason) override {
    log::error("nnscaler.comm", "rank {} gives up: {}", rank(), reason);
    MPI_Abort(MPI_COMM_WORLD, 1);
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
