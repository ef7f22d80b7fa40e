// LibTorch's memory on the CPU: counted, and small blocks kept by size for the next operator.
#pragma once

#include <cstdint>

namespace nns::tensor {

struct MemoryCount {
  int64_t live = 0;  // bytes asked for and not yet freed
  int64_t peak = 0;  // the most since the start or the last reset
};

// Makes ours LibTorch's allocator, once per process. Blocks made before keep their own deleter.
void install_allocator();
MemoryCount cpu_memory() noexcept;
void reset_peak() noexcept;
// From here on a tensor for which there is no room within so many bytes, of all threads together,
// is a c10::OutOfMemoryError; 0: as much as the system gives.
void limit_memory(int64_t bytes) noexcept;

}  // namespace nns::tensor
