// LibTorch's memory on the CPU: counted, and small blocks kept by size for the next operator.
#pragma once

#include <atomic>
#include <cstdint>

namespace nns::tensor {

struct MemoryCount {
  int64_t live = 0;  // bytes asked for and not yet freed
  int64_t peak = 0;  // the most since the start or the last reset
};

// Counts memory that several threads take and give back.
class Counter {
 public:
  void add(int64_t bytes) noexcept {
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  MemoryCount value() const noexcept {
    return {live_.load(std::memory_order_relaxed), peak_.load(std::memory_order_relaxed)};
  }
  void reset_peak() noexcept { peak_.store(live_.load()); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

// Makes ours LibTorch's allocator, once per process. Blocks made before keep their own deleter.
void install_allocator();
MemoryCount cpu_memory() noexcept;
void reset_peak() noexcept;
// From here on a tensor for which there is no room within so many bytes, of all threads together,
// is a c10::OutOfMemoryError; 0: as much as the system gives.
void limit_memory(int64_t bytes) noexcept;

}  // namespace nns::tensor
