// The gloo back end: TCP between processes, through the ProcessGroupGloo inside the torch library.
// Debian's headers give the declarations; nothing else includes them.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ops/from_blob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "comm/backend.h"
#include "comm/gloo/worker.h"
#include "comm/staged.h"
#include "comm/store.h"
#include "job/backends.h"
#include "launch/wire.h"

namespace nns::comm {
namespace {

using GlooPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Where a group's threads wait, so that all of them can be told to stop.
class Waits {
 public:
  void wait(const WorkPtr& work) {
    enter(work);
    try {
      work->wait();
    } catch (...) {
      leave(work);
      throw;
    }
    leave(work);
  }
  // All waits throw from now on.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& work : now_) work->abort();
  }

 private:
  void enter(const WorkPtr& work) {
    const std::lock_guard lock(mutex_);
    refuse_stopped();
    now_.push_back(work);
  }
  void leave(const WorkPtr& work) {
    const std::lock_guard lock(mutex_);
    now_.erase(std::find(now_.begin(), now_.end(), work));
    refuse_stopped();
  }
  void refuse_stopped() const {
    if (stopped_) throw std::runtime_error("this rank gave up");
  }

  std::mutex mutex_;
  bool stopped_ = false;
  std::vector<WorkPtr> now_;
};

// Steps wait: what c10d has under way cannot be asked whether it is done.
class GlooBatch : public Batch {
 public:
  GlooBatch(GlooPtr gloo, std::shared_ptr<Waits> waits, const char* operation)
      : gloo_(std::move(gloo)), waits_(std::move(waits)), operation_(operation) {}

  void send(const void* data, int64_t bytes, int peer, int tag) override {
    post(const_cast<void*>(data), bytes,
         [&](std::vector<at::Tensor>& one) { return gloo_->send(one, peer, tag); });
  }
  void recv(void* data, int64_t bytes, int peer, int tag) override {
    post(data, bytes, [&](std::vector<at::Tensor>& one) { return gloo_->recv(one, peer, tag); });
  }
  bool step() override {
    guarded_call(operation_, [&] {
      for (const auto& work : works_) waits_->wait(work);
    });
    works_.clear();
    return true;
  }

 private:
  template <class F>
  void post(void* data, int64_t bytes, F start) {
    std::vector<at::Tensor> one{at::from_blob(data, {bytes}, at::kByte)};
    guarded_call(operation_, [&] { works_.push_back(start(one)); });
  }

  GlooPtr gloo_;
  std::shared_ptr<Waits> waits_;
  const char* operation_;
  std::vector<WorkPtr> works_;
};

class GlooGroup : public StagedGroup {
 public:
  GlooGroup(std::vector<int> ranks, int position, const c10::intrusive_ptr<c10d::Store>& store,
            const c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>& options)
      : StagedGroup(std::move(ranks), position) {
    if (size() == 1) return;
    gloo_ = guarded_call("group", [&] {
      auto own = c10::make_intrusive<c10d::PrefixStore>(
          fmt::format("nnscaler/{}", fmt::join(this->ranks(), ",")), store);
      return c10::make_intrusive<c10d::ProcessGroupGloo>(own, position, size(), options);
    });
  }

  // A message is handed over only when it is received: unless an error is on its way, wait for
  // that.
  ~GlooGroup() override {
    if (std::uncaught_exceptions() > 0) {
      waits_->stop();
      return;
    }
    try {
      flush();
    } catch (const Error& e) {
      log::warning("nnscaler.comm", "a message was never received: {}", e.what());
    }
  }

  void barrier() override {
    if (size() > 1) guarded_call("barrier", [&] { gloo_->barrier()->wait(); });
  }

  void flush() override {
    for (; !outgoing_.empty(); outgoing_.pop_front()) outgoing_.front().second->step();
  }

 protected:
  std::unique_ptr<Batch> batch(const char* operation) override {
    return std::make_unique<GlooBatch>(gloo_, waits_, operation);
  }

  void wait(Operation& operation, const char*) override {
    while (!operation.step()) continue;
  }

  void keep(std::unique_ptr<Batch> message, at::Tensor bytes) override {
    outgoing_.emplace_back(std::move(bytes), std::move(message));
  }

  std::shared_ptr<Handle> start(std::shared_ptr<Operation> operation, const char*) override {
    return worker_.add(std::move(operation));
  }

  int64_t piece_bytes() const override { return 8 << 20; }

  void broadcast_bytes(void* data, int64_t bytes, int root) override {
    std::vector<at::Tensor> one{at::from_blob(data, {bytes}, at::kByte)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    guarded_call("broadcast", [&] { gloo_->broadcast(one, options)->wait(); });
  }

 private:
  GlooPtr gloo_;
  std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
  std::deque<std::pair<at::Tensor, std::unique_ptr<Batch>>> outgoing_;
  Worker worker_;
};

// Of the interface that the user names, else of the one that leads to where the ranks meet.
auto device() {
  const launch::Environment environment = launch::process_environment();
  if (const auto interface = environment("GLOO_SOCKET_IFNAME"))
    return c10d::ProcessGroupGloo::createDeviceForInterface(*interface);
  const std::string own = launch::address_towards(*environment("MASTER_ADDR"));
  return own.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                     : c10d::ProcessGroupGloo::createDeviceForHostname(own);
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const Launch& me, const ConnectOptions& options) : launch_(me) {
    store_ = join_store("gloo", me, milliseconds(options.join_timeout_s));
    options_ = c10d::ProcessGroupGloo::Options::create(milliseconds(options.timeout_s));
    options_->devices.push_back(guarded_call("gloo", device));
    std::vector<int> all;
    for (int r = 0; r < me.size; ++r) all.push_back(r);
    group(std::move(all));
  }

  std::string backend() const override { return job::name_of(job::Backend::gloo); }
  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.size; }

  std::shared_ptr<Group> group(std::vector<int> ranks) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank());
    NNS_CHECK(at != ranks.end(), "rank {} is not in group {}", rank(), fmt::join(ranks, ","));
    auto& known = groups_[ranks];
    if (!known)
      known = std::make_shared<GlooGroup>(ranks, static_cast<int>(at - ranks.begin()), store_,
                                          options_);
    return known;
  }

 private:
  Launch launch_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace

std::string gloo_problem() {
  return "";
}

std::shared_ptr<Communicator> connect_gloo(const Launch& launch, const ConnectOptions& options) {
  return std::make_shared<GlooCommunicator>(launch, options);
}

}  // namespace nns::comm
