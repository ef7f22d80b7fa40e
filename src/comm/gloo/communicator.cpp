// The gloo back end: TCP between processes, through the ProcessGroupGloo inside the torch library.
// Debian's headers give the declarations; nothing else includes them.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ATen/ops/from_blob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "comm/backend.h"
#include "comm/staged.h"

namespace nns::comm {
namespace {

using GlooPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What LibTorch throws, as an error of ours.
template <class F>
auto guarded_call(const char* operation, F call) {
  try {
    return call();
  } catch (const c10::Error& e) {
    fail(ErrorKind::communication, "[comm.{}] {}", operation, e.what_without_backtrace());
  } catch (const std::runtime_error& e) {
    fail(ErrorKind::communication, "[comm.{}] {}", operation, e.what());
  }
}

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

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string variable(const launch::Environment& environment, const char* name) {
  const auto value = environment(name);
  if (!value || value->empty())
    throw Error(ErrorKind::usage, fmt::format("[comm.gloo] {} is not set", name),
                "gloo meets at MASTER_ADDR:MASTER_PORT, which torchrun sets; give them to the "
                "ranks, or choose another comm.backend");
  return *value;
}

c10::intrusive_ptr<c10d::Store> join_store(const Launch& me, std::chrono::milliseconds limit) {
  const launch::Environment environment = launch::process_environment();
  const std::string host = variable(environment, "MASTER_ADDR");
  const std::string port = variable(environment, "MASTER_PORT");
  const int number = std::atoi(port.c_str());
  if (number < 1 || number > 65535 || std::to_string(number) != port)
    fail(ErrorKind::usage, "[comm.gloo] MASTER_PORT is '{}'; expected a port, 1 to 65535", port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number);
  // Under torchrun its agent serves there.
  options.isServer = me.rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.waitWorkers = false;
  options.timeout = limit;
  return guarded_call("gloo", [&]() -> c10::intrusive_ptr<c10d::Store> {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    // A restart by torchrun must not meet the keys of the ranks before.
    return c10::make_intrusive<c10d::PrefixStore>(
        environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), store);
  });
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const Launch& me, const ConnectOptions& options) : launch_(me) {
    store_ = join_store(me, milliseconds(options.join_timeout_s));
    options_ = c10d::ProcessGroupGloo::Options::create(milliseconds(options.timeout_s));
    const auto interface = launch::process_environment()("GLOO_SOCKET_IFNAME");
    options_->devices.push_back(guarded_call("gloo", [&] {
      return interface ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface)
                       : c10d::ProcessGroupGloo::createDefaultDevice();
    }));
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

std::shared_ptr<Communicator> connect_gloo(const Launch& launch, const ConnectOptions& options) {
  return std::make_shared<GlooCommunicator>(launch, options);
}

}  // namespace nns::comm
