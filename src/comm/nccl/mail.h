// Messages between two ranks through NCCL, which pairs them in order, knows no tags, and hands a
// message over only once both sides have come. So each direction of a pair has a connection of its
// own; what leaves waits in a thread, and ahead of each message goes an envelope with its tag.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "comm/nccl/process_group.h"

namespace nns::comm {

// Joins the two ends of one direction: the sender is 0, the receiver 1. Waits for the other.
using Meet = std::function<NcclPtr()>;

class Outbox {
 public:
  Outbox(at::Device device, Meet meet);
  // Waits for the receiver, unless an error is on its way.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // `message`: bytes on the device that nobody writes any more.
  void put(at::Tensor message, int tag);
  // Returns when all was handed over; throws what went wrong.
  void flush();

 private:
  struct Letter {
    at::Tensor message;
    int tag;
    std::shared_ptr<at::cuda::CUDAEvent> ready;  // what has to run before the message is whole
  };
  // Shared with the thread, which may have to be left behind in a call that never ends.
  struct State {
    at::Device device;
    Meet meet;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Letter> letters;
    std::exception_ptr error;
    bool closed = false;
  };
  static void deliver(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

class Inbox {
 public:
  Inbox(at::Device device, Meet meet) : device_(device), meet_(std::move(meet)) {}
  // The oldest message of the tag, as bytes.
  at::Tensor take(int tag);

 private:
  at::Device device_;
  Meet meet_;
  NcclPtr connection_;
  std::map<int, std::deque<at::Tensor>> early_;  // came while another tag was waited for
};

}  // namespace nns::comm
