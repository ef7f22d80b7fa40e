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

#include "base/error.h"
#include "base/log.h"
#include "comm/backend.h"
#include "comm/staged.h"
#include "comm/store.h"
#include "launch/wire.h"

namespace nns::comm {
namespace {

using GlooPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor view(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::kByte);
}
at::Tensor view(const void* data, int64_t bytes) {
  return view(const_cast<void*>(data), bytes);
}

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
    if (std::uncaught_exceptions() > 0) return;
    try {
      for (auto& [work, message] : outgoing_) work->wait();
    } catch (const std::exception& e) {
      log::warning("nnscaler.comm", "a message was never received: {}", e.what());
    }
  }

  void barrier() override {
    if (size() > 1) run("barrier", [&] { return gloo_->barrier(); });
  }

  void flush() override {
    for (; !outgoing_.empty(); outgoing_.pop_front())
      run("send", [&] { return outgoing_.front().first; });
  }

 protected:
  void gather_bytes(void* all, const void* one, int64_t bytes) override {
    at::Tensor to = view(all, bytes * size()), from = view(one, bytes);
    run("all_gather", [&] { return gloo_->all_gather_single(to, from); });
  }

  void swap_bytes(void* out, const void* in, int64_t bytes) override {
    at::Tensor to = view(out, bytes * size()), from = view(in, bytes * size());
    std::vector<int64_t> equal;
    run("all_to_all", [&] { return gloo_->all_to_all_single(to, from, equal, equal); });
  }

  void broadcast_bytes(void* data, int64_t bytes, int root) override {
    std::vector<at::Tensor> one{view(data, bytes)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run("broadcast", [&] { return gloo_->broadcast(one, options); });
  }

  void send_bytes(at::Tensor message, int peer, int tag) override {
    std::vector<at::Tensor> one{std::move(message)};
    auto work = guarded_call("send", [&] { return gloo_->send(one, peer, tag); });
    outgoing_.emplace_back(std::move(work), std::move(one[0]));
  }

  void recv_bytes(void* data, int64_t bytes, int peer, int tag) override {
    std::vector<at::Tensor> one{view(data, bytes)};
    run("recv", [&] { return gloo_->recv(one, peer, tag); });
  }

 private:
  template <class F>
  void run(const char* operation, F start) {
    guarded_call(operation, [&] { start()->wait(); });
  }

  GlooPtr gloo_;
  std::deque<std::pair<WorkPtr, at::Tensor>> outgoing_;
};

// Of the interface that a person names, else of the one that leads to where the ranks meet.
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

  std::string backend() const override { return "gloo"; }
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

  // Peers see the connections close and throw.
  void abort(const std::string& reason) override {
    log::error("nnscaler.comm", "rank {} gives up: {}", rank(), reason);
    groups_.clear();
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
