// A thread that carries operations of one group out, one after the other, while the rank computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/group.h"
#include "comm/messages.h"

namespace nns::comm {

class Worker {
 public:
  Worker() = default;
  // Waits for what was added.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The handle throws what the operation throws.
  std::shared_ptr<Handle> add(std::shared_ptr<Operation> operation);

 private:
  class Task;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool closing_ = false;
  std::thread thread_;  // from the first operation on
};

}  // namespace nns::comm
