#include "comm/gloo/worker.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <utility>

namespace nns::comm {

class Worker::Task : public Handle {
 public:
  explicit Task(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}

  void run() {
    try {
      while (!operation_->step()) continue;
    } catch (...) {
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  bool done() override {
    const std::lock_guard lock(mutex_);
    if (over_ && error_) std::rethrow_exception(error_);
    return over_;
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::shared_ptr<Operation> operation_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::exception_ptr error_;
};

Worker::~Worker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Handle> Worker::add(std::shared_ptr<Operation> operation) {
  auto task = std::make_shared<Task>(std::move(operation));
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  return task;
}

void Worker::run() {
  sigset_t all;  // signals are for the rank's own thread
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task->run();
    lock.lock();
  }
}

}  // namespace nns::comm
