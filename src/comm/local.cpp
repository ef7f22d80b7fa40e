#include "comm/local.h"

#include <ATen/ops/empty.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "comm/reduce.h"
#include "job/backends.h"

namespace nns::comm {

// Everything is guarded by one mutex: ranks are few, and waiting is rare beside the work.
class LocalWorld {
 public:
  explicit LocalWorld(int size) : size(size) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;  // reason of the first rank that gave up
  int failed_rank = -1;

  void throw_if_failed(const char* operation) const {
    if (failed_rank >= 0)
      fail(ErrorKind::communication, "[comm.{}] rank {} gave up: {}", operation, failed_rank,
           failure);
  }

  // Waits for `ready` (called under the mutex); throws when a rank gives up meanwhile.
  template <class F>
  void wait(std::unique_lock<std::mutex>& lock, const char* operation, F ready) {
    while (!ready()) {
      throw_if_failed(operation);
      changed.wait(lock);
    }
  }

  // One meeting place a group.
  struct Post {
    std::string call;  // operation, dtype, count
    const at::Tensor* in = nullptr;
    const at::Tensor* out = nullptr;
    std::string text;
  };
  struct Room {
    std::vector<Post> posts;
    int arrived = 0;
    uint64_t round = 0;
    std::map<std::tuple<int, int, int>, std::deque<at::Tensor>> mail;  // (from, to, tag)
  };
  std::map<std::vector<int>, std::shared_ptr<Room>> rooms;

  std::shared_ptr<Room> room(const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex);
    auto& room = rooms[ranks];
    if (!room) {
      room = std::make_shared<Room>();
      room->posts.resize(ranks.size());
    }
    return room;
  }
};

std::shared_ptr<LocalWorld> make_local_world(int size) {
  return std::make_shared<LocalWorld>(size);
}

namespace {

class LocalGroup : public Group {
 public:
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> ranks, int position)
      : Group(ranks, position), world_(std::move(world)), room_(world_->room(ranks)) {}

  void send(const at::Tensor& tensor, int peer, int tag) override {
    const std::lock_guard lock(world_->mutex);
    world_->throw_if_failed("send");
    room_->mail[{position(), peer, tag}].push_back(tensor.contiguous().clone());
    count(bytes_of(tensor));
    world_->changed.notify_all();
  }

  void recv(at::Tensor& tensor, int peer, int tag) override {
    at::Tensor message;
    {
      std::unique_lock lock(world_->mutex);
      auto& box = room_->mail[{peer, position(), tag}];
      world_->wait(lock, "recv", [&] { return !box.empty(); });
      message = std::move(box.front());
      box.pop_front();
    }
    if (message.sizes() != tensor.sizes() || message.scalar_type() != tensor.scalar_type())
      fail(ErrorKind::communication,
           "[comm.recv] rank {} expects {} {} from rank {}, which sent {} {}",
           ranks()[static_cast<size_t>(position())], c10::toString(tensor.scalar_type()),
           fmt::join(tensor.sizes(), "×"), ranks()[static_cast<size_t>(peer)],
           c10::toString(message.scalar_type()), fmt::join(message.sizes(), "×"));
    tensor.copy_(message);
  }

  void barrier() override {
    meet("barrier", post_of("barrier"), [](const auto&) {});
  }

  std::vector<std::string> exchange(const std::string& mine) override {
    std::vector<std::string> all;
    LocalWorld::Post post = post_of("exchange");
    post.text = mine;
    meet("exchange", std::move(post), [&](const std::vector<LocalWorld::Post>& posts) {
      for (const auto& p : posts) all.push_back(p.text);
    });
    return all;
  }

 protected:
  void do_all_reduce(at::Tensor& tensor, Reduce reduce) override {
    // Each rank sums one chunk of all, then copies the others' chunks: the traffic of a ring.
    const int n = size();
    const int64_t chunk = (tensor.numel() + n - 1) / n;
    at::Tensor mine = at::empty({n * chunk}, tensor.options());
    mine.narrow(0, 0, tensor.numel()).copy_(tensor.view(-1));
    if (n * chunk > tensor.numel())
      mine.narrow(0, tensor.numel(), n * chunk - tensor.numel()).zero_();
    at::Tensor sum = at::empty({chunk}, tensor.options());
    meet("all_reduce", post_of("all_reduce", mine, sum, tensor), [&](const auto& posts) {
      std::vector<const void*> addends;
      for (const auto& p : posts)
        addends.push_back(static_cast<const char*>(p.in->const_data_ptr()) +
                          position() * chunk * static_cast<int64_t>(p.in->element_size()));
      reduce_in_order(sum.mutable_data_ptr(), addends.data(), n, chunk, sum.scalar_type(), reduce);
    });
    meet("all_reduce", post_of("all_reduce", mine, sum, tensor), [&](const auto& posts) {
      for (int k = 0; k < n; ++k)
        mine.narrow(0, k * chunk, chunk).copy_(*posts[static_cast<size_t>(k)].out);
      count_reduced(tensor);
    });
    tensor.view(-1).copy_(mine.narrow(0, 0, tensor.numel()));
  }

  void do_all_gather(at::Tensor& all, const at::Tensor& one) override {
    meet("all_gather", post_of("all_gather", one, all), [&](const auto& posts) {
      for (int k = 0; k < size(); ++k) all[k].copy_(*posts[static_cast<size_t>(k)].in);
      count_elements(one, (size() - 1) * one.numel());
    });
  }

  void do_reduce_scatter(at::Tensor& one, const at::Tensor& all) override {
    meet("reduce_scatter", post_of("reduce_scatter", all, one), [&](const auto& posts) {
      std::vector<const void*> addends;
      for (const auto& p : posts) addends.push_back((*p.in)[position()].const_data_ptr());
      reduce_in_order(one.mutable_data_ptr(), addends.data(), size(), one.numel(),
                      one.scalar_type(), Reduce::sum);
      count_elements(one, (size() - 1) * one.numel());
    });
  }

  void do_all_to_all(at::Tensor& out, const at::Tensor& in) override {
    meet("all_to_all", post_of("all_to_all", in, out), [&](const auto& posts) {
      for (int k = 0; k < size(); ++k)
        out[k].copy_((*posts[static_cast<size_t>(k)].in)[position()]);
      count_elements(in, in.numel() / size() * (size() - 1));
    });
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    meet("broadcast", post_of("broadcast", tensor, tensor), [&](const auto& posts) {
      if (position() != root) tensor.copy_(*posts[static_cast<size_t>(root)].in);
      if (position() == root) count_elements(tensor, (size() - 1) * tensor.numel());
    });
  }

  bool compares() const override { return true; }

 private:
  // Ranks must agree on type and shape of `like`.
  LocalWorld::Post post_of(const char* operation, const at::Tensor& in, const at::Tensor& out,
                           const at::Tensor& like) {
    return {call_text(operation, like), &in, &out, {}};
  }
  LocalWorld::Post post_of(const char* operation, const at::Tensor& in, const at::Tensor& out) {
    return post_of(operation, in, out, in);
  }
  LocalWorld::Post post_of(const char* operation) {
    return {call_text(operation, at::Tensor()), nullptr, nullptr, {}};
  }

  void count_elements(const at::Tensor& like, int64_t elements) {
    count(elements * static_cast<int64_t>(like.element_size()));
  }

  // All members post, each then works on what all posted, and leaves when all are done with it: the
  // posts point into the members' tensors, so not even a failure elsewhere lets a member go
  // earlier.
  template <class F>
  void meet(const char* operation, LocalWorld::Post post, F work) {
    {
      std::unique_lock lock(world_->mutex);
      world_->throw_if_failed(operation);
      room_->posts[static_cast<size_t>(position())] = std::move(post);
      const uint64_t round = room_->round;
      if (!arrive()) world_->wait(lock, operation, [&] { return room_->round != round; });
    }
    std::exception_ptr error;
    try {
      std::vector<std::string> calls;
      for (const auto& p : room_->posts) calls.push_back(p.call);
      compare_calls(operation, calls);
      work(room_->posts);
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::unique_lock lock(world_->mutex);
      const uint64_t round = room_->round;
      if (!arrive()) world_->changed.wait(lock, [&] { return room_->round != round; });
    }
    if (error) std::rethrow_exception(error);
  }

  // Under the mutex: whether this member is the last to come, which lets the others go on.
  bool arrive() {
    if (++room_->arrived < size()) return false;
    room_->arrived = 0;
    ++room_->round;
    world_->changed.notify_all();
    return true;
  }

  std::shared_ptr<LocalWorld> world_;
  std::shared_ptr<LocalWorld::Room> room_;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalWorld> world, int rank)
      : world_(std::move(world)), rank_(rank) {}

  std::string backend() const override { return job::name_of(job::Backend::local); }
  int rank() const override { return rank_; }
  int size() const override { return world_->size; }

  std::shared_ptr<Group> group(std::vector<int> ranks) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank_);
    NNS_CHECK(at != ranks.end(), "rank {} is not in group {}", rank_, fmt::join(ranks, ","));
    auto& known = groups_[ranks];
    if (!known)
      known = std::make_shared<LocalGroup>(world_, ranks, static_cast<int>(at - ranks.begin()));
    return known;
  }

 private:
  std::shared_ptr<LocalWorld> world_;
  int rank_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace

int failed_rank(const LocalWorld& world) {
  return world.failed_rank;
}

void give_up(LocalWorld& world, int rank, const std::string& reason) {
  const std::lock_guard lock(world.mutex);
  if (world.failed_rank < 0) {
    world.failed_rank = rank;
    world.failure = reason;
  }
  world.changed.notify_all();
}

std::unique_ptr<Communicator> join_local(std::shared_ptr<LocalWorld> world, int rank) {
  return std::make_unique<LocalCommunicator>(std::move(world), rank);
}

}  // namespace nns::comm
