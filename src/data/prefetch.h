// Makes items ahead of their use on a thread of its own. Items are numbered; while they are asked
// for in steps of `stride`, the next `depth` lie ready; any other number drops them and starts
// anew. What `make` throws is thrown by the `get` of that number. `make` must not touch the Lua
// state of who asks; it may have its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace nns::data {

template <class T>
class Prefetcher {
 public:
  Prefetcher(std::function<T(int64_t)> make, int64_t stride, size_t depth)
      : make_(std::move(make)), stride_(stride), depth_(depth) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Returns item n; called from one thread.
  T get(int64_t n) {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
      jump(n);
    } else if (wanted_ != n) {
      jump(n);
    }
    wake_.wait(lock, [this] { return !ready_.empty(); });
    Item item = std::move(ready_.front());
    ready_.pop_front();
    wanted_ = n + stride_;
    lock.unlock();
    wake_.notify_all();
    if (item.error) std::rethrow_exception(item.error);
    return std::move(*item.value);
  }

 private:
  struct Item {
    std::optional<T> value;
    std::exception_ptr error;
  };

  void jump(int64_t n) {
    ready_.clear();
    wanted_ = next_ = n;
    ++round_;
    wake_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || (round_ > 0 && ready_.size() < depth_); });
      if (stop_) return;
      const int64_t n = next_;
      const uint64_t round = round_;
      lock.unlock();
      Item item;
      try {
        item.value = make_(n);
      } catch (...) {
        item.error = std::current_exception();
      }
      lock.lock();
      if (round != round_) continue;  // a jump came meanwhile
      ready_.push_back(std::move(item));
      next_ = n + stride_;
      wake_.notify_all();
    }
  }

  const std::function<T(int64_t)> make_;
  const int64_t stride_;
  const size_t depth_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> ready_;
  int64_t wanted_ = 0;  // the number of ready_'s first item
  int64_t next_ = 0;    // the number the thread makes next
  uint64_t round_ = 0;  // jumps so far; 0 until the first get
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace nns::data
