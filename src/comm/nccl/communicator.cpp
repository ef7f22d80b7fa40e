// The nccl back end: GPUs, through the ProcessGroupNCCL of the torch library. Sums are in NCCL's
// order, which is the same on every rank but not that of the other back ends. Tensors of the CPU
// (numbers that ranks tell each other) go by the device.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "comm/backend.h"
#include "comm/nccl/mail.h"
#include "comm/nccl/process_group.h"
#include "comm/store.h"
#include "job/backends.h"

namespace nns::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp::RedOpType operation_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::max:
      return c10d::ReduceOp::MAX;
    case Reduce::min:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;
  }
}

// What only moves, moves as bytes: NCCL does not know every dtype.
at::Tensor as_bytes(const at::Tensor& dense) {
  return dense.view(-1).view(at::kByte);
}

// Where all groups of a rank meet.
struct Place {
  int rank;
  at::Device device;
  std::chrono::milliseconds limit;
  c10::intrusive_ptr<c10d::Store> store;

  // This rank is `position` of `size` in what all of them call `name`.
  NcclPtr meet(const std::string& name, int position, int size) const {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = limit;
    auto own = c10::make_intrusive<c10d::PrefixStore>("nnscaler/" + name, store);
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(own, position, size, options);
  }
};

class WorkHandle : public Handle {
 public:
  WorkHandle(WorkPtr work, at::Tensor on_device, at::Tensor result)
      : work_(std::move(work)), on_device_(std::move(on_device)), result_(std::move(result)) {}
  bool done() override { return work_->isCompleted(); }
  void wait() override {
    guarded_call("all_reduce", [&] { work_->wait(); });
    if (!on_device_.is_same(result_)) result_.copy_(on_device_);
  }

 private:
  WorkPtr work_;
  at::Tensor on_device_, result_;
};

class NcclGroup : public Group {
 public:
  NcclGroup(std::vector<int> ranks, int position, std::shared_ptr<const Place> place)
      : Group(std::move(ranks), position), place_(std::move(place)) {
    if (size() == 1) return;
    name_ = fmt::format("{}", fmt::join(this->ranks(), ","));
    nccl_ = guarded_call("group", [&] { return place_->meet(name_, this->position(), size()); });
  }

  void send(const at::Tensor& tensor, int peer, int tag) override {
    if (tensor.numel() == 0) return;
    auto& box = outboxes_[peer];
    if (!box)
      box = std::make_unique<Outbox>(
          place_->device,
          [place = place_, name = fmt::format("{}/{}>{}", name_, position(), peer)] {
            return place->meet(name, 0, 2);
          });
    const auto options = tensor.options().device(place_->device);
    box->put(as_bytes(tensor.to(options, false, true, at::MemoryFormat::Contiguous)), tag);
    count(bytes_of(tensor));
  }

  void recv(at::Tensor& tensor, int peer, int tag) override {
    if (tensor.numel() == 0) return;
    auto& box = inboxes_[peer];
    if (!box)
      box = std::make_unique<Inbox>(
          place_->device,
          [place = place_, name = fmt::format("{}/{}>{}", name_, peer, position())] {
            return place->meet(name, 1, 2);
          });
    const at::Tensor message = box->take(tag);
    if (message.numel() != bytes_of(tensor))
      fail(ErrorKind::communication, "[comm.recv] rank {} expects {} bytes from rank {}, got {}",
           place_->rank, bytes_of(tensor), ranks()[static_cast<size_t>(peer)], message.numel());
    tensor.copy_(message.view(tensor.scalar_type()).view(tensor.sizes()));
  }

  void flush() override {
    for (auto& [peer, box] : outboxes_) box->flush();
  }

  void barrier() override {
    if (size() == 1) return;
    c10d::BarrierOptions options;
    options.device = place_->device;
    run("barrier", [&] { return nccl_->barrier(options); });
  }

  std::vector<std::string> exchange(const std::string& mine) override {
    if (size() == 1) return {mine};
    const auto heads = gather_texts(fmt::format("{:020}", mine.size()));
    size_t longest = 0;
    for (const std::string& text : heads) longest = std::max<size_t>(longest, std::stoull(text));
    std::string padded = mine;
    padded.resize(std::max<size_t>(longest, 1));
    auto texts = gather_texts(padded);
    for (size_t k = 0; k < texts.size(); ++k) texts[k].resize(std::stoull(heads[k]));
    return texts;
  }

 protected:
  void do_all_reduce(at::Tensor& tensor, Reduce reduce) override {
    if (const auto handle = start_all_reduce(tensor, reduce)) handle->wait();
  }

  std::shared_ptr<Handle> start_all_reduce(at::Tensor& tensor, Reduce reduce) override {
    if (tensor.numel() == 0) return nullptr;
    // NCCL has no 16 bit integers.
    std::vector<at::Tensor> one{
        here(tensor.scalar_type() == at::kShort ? tensor.to(at::kInt) : tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation_of(reduce);
    auto work = guarded_call("all_reduce", [&] { return nccl_->allreduce(one, options); });
    count_reduced(tensor);
    return std::make_shared<WorkHandle>(std::move(work), one[0], tensor);
  }

  void do_all_gather(at::Tensor& all, const at::Tensor& one) override {
    if (one.numel() == 0) return;
    move("all_gather", all, one,
         [&](at::Tensor& to, at::Tensor& from) { return nccl_->all_gather_single(to, from); });
    count((size() - 1) * bytes_of(one));
  }

  void do_reduce_scatter(at::Tensor& one, const at::Tensor& all) override {
    if (one.numel() == 0) return;
    const auto type = one.scalar_type() == at::kShort ? at::kInt : one.scalar_type();
    at::Tensor from = here(all.to(type));
    at::Tensor to = at::empty(one.sizes(), from.options());
    run("reduce_scatter", [&] { return nccl_->reduce_scatter_single(to, from); });
    one.copy_(to);
    count((size() - 1) * bytes_of(one));
  }

  void do_all_to_all(at::Tensor& out, const at::Tensor& in) override {
    if (in.numel() == 0) return;
    std::vector<int64_t> equal;
    move("all_to_all", out, in, [&](at::Tensor& to, at::Tensor& from) {
      return nccl_->all_to_all_single(to, from, equal, equal);
    });
    count(bytes_of(in) / size() * (size() - 1));
  }

  void do_broadcast(at::Tensor& tensor, int root) override {
    if (tensor.numel() == 0) return;
    c10d::BroadcastOptions options;
    options.rootRank = root;
    move("broadcast", tensor, tensor, [&](at::Tensor& to, at::Tensor& from) {
      std::vector<at::Tensor> one{from};
      to = from;
      return nccl_->broadcast(one, options);
    });
    if (position() == root) count((size() - 1) * bytes_of(tensor));
  }

 private:
  at::Tensor here(const at::Tensor& tensor) const {
    return tensor.device() == place_->device ? tensor : tensor.to(place_->device);
  }

  template <class F>
  void run(const char* operation, F start) {
    guarded_call(operation, [&] { start()->wait(); });
  }

  // Moves the bytes of `in` on the device and puts what came into `out`.
  template <class F>
  void move(const char* operation, at::Tensor& out, const at::Tensor& in, F start) {
    at::Tensor from = here(as_bytes(in));
    at::Tensor to = at::empty({bytes_of(out)}, from.options());
    run(operation, [&] { return start(to, from); });
    if (to.const_data_ptr() != out.const_data_ptr()) as_bytes(out).copy_(to);
  }

  std::vector<std::string> gather_texts(const std::string& mine) {
    const auto length = static_cast<int64_t>(mine.size());
    at::Tensor all = at::empty({size() * length}, at::kByte);
    move("exchange", all, at::from_blob(const_cast<char*>(mine.data()), {length}, at::kByte),
         [&](at::Tensor& to, at::Tensor& from) { return nccl_->all_gather_single(to, from); });
    std::vector<std::string> texts;
    for (int k = 0; k < size(); ++k)
      texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + k * length, mine.size());
    return texts;
  }

  std::shared_ptr<const Place> place_;
  std::string name_;
  NcclPtr nccl_;
  std::map<int, std::unique_ptr<Outbox>> outboxes_;  // by position
  std::map<int, std::unique_ptr<Inbox>> inboxes_;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Launch& me, const ConnectOptions& options)
      : size_(me.size),
        place_(std::make_shared<Place>(
            Place{me.rank, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options.gpu)),
                  milliseconds(options.timeout_s),
                  join_store("nccl", me, milliseconds(options.join_timeout_s))})) {}

  std::string backend() const override { return job::name_of(job::Backend::nccl); }
  int rank() const override { return place_->rank; }
  int size() const override { return size_; }

  std::shared_ptr<Group> group(std::vector<int> ranks) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank());
    NNS_CHECK(at != ranks.end(), "rank {} is not in group {}", rank(), fmt::join(ranks, ","));
    auto& known = groups_[ranks];
    if (!known)
      known = std::make_shared<NcclGroup>(ranks, static_cast<int>(at - ranks.begin()), place_);
    return known;
  }

 private:
  int size_;
  std::shared_ptr<const Place> place_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace
}  // namespace nns::comm

extern "C" void nns_connect_nccl(const nns::launch::Launch& launch,
                                 const nns::comm::ConnectOptions& options,
                                 std::shared_ptr<nns::comm::Communicator>& communicator) {
  communicator = std::make_shared<nns::comm::NcclCommunicator>(launch, options);
}
