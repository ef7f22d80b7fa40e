// A block is a header of 64 bytes, then the data. Blocks up to 1 MiB go back to a list of their
// size class in the freeing thread, at most 32 MiB a thread; glibc's aligned allocation costs as
// much as a small operator. Blocks that glibc would map and unmap each time, whose pages the system
// clears anew, are kept, as far as no more memory is taken than was once in use.
#include "tensor/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace nns::tensor {
namespace {

constexpr size_t kUnit = 64;  // LibTorch's alignment
constexpr size_t kLargest = size_t{1} << 20, kCached = size_t{32} << 20;
constexpr int kLinear = 16, kSteps = 8;  // classes of one unit each, then 8 a power of two
constexpr int kClasses = kLinear + kSteps * 10 + 1;
constexpr int kNoClass = -1, kMappedClass = -2;
// From here on glibc maps a block of its own: 32 MiB (cli/main.cpp), less LibTorch's alignment to a
// page of 2 MiB.
constexpr size_t kMapped = size_t{30} << 20;

std::atomic<int64_t> g_limit{0};  // 0: none
Counter g_count;

struct alignas(kUnit) Header {
  size_t asked = 0;
  size_t bytes = 0;  // of a mapped block, the header with them
  int size_class = kNoClass;
  Header* next = nullptr;  // in the list of free blocks
};
static_assert(sizeof(Header) == kUnit);

// The class of a block of `size` bytes, and the bytes that blocks of this class have.
struct SizeClass {
  int index;
  size_t bytes;
};
SizeClass class_of(size_t size) {
  const size_t units = (size + kUnit - 1) / kUnit;
  if (units <= kLinear) return {static_cast<int>(units), units * kUnit};
  const int octave = std::bit_width(units - 1) - 1;  // 2^octave < units ≤ 2^(octave + 1)
  const size_t step = (size_t{1} << octave) / kSteps;
  const size_t part = (units - (size_t{1} << octave) + step - 1) / step;  // 1 … kSteps
  return {kLinear + (octave - 4) * kSteps + static_cast<int>(part),
          ((size_t{1} << octave) + part * step) * kUnit};
}

// Trivially destructible, so that reaching it costs no check; Drain empties it at thread exit.
struct Cache {
  Header* heads[kClasses];
  size_t bytes;
  bool closed;
};
constinit thread_local Cache t_cache{};

struct Drain {
  bool armed = false;
  ~Drain() {
    t_cache.closed = true;
    for (Header*& head : t_cache.heads)
      while (head != nullptr) c10::free_cpu(std::exchange(head, head->next));
  }
};
thread_local Drain t_drain;

// Mapped blocks that nobody uses, the one that was freed first in front. What is used and kept
// together is never more than the most that was used at one time.
class Kept {
 public:
  // A block of at least `bytes` and an eighth more at most; null where there is none: then room is
  // made for a new one.
  Header* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto it = blocks_.begin(); it != blocks_.end(); ++it)
      if ((*it)->bytes >= bytes && (*it)->bytes <= bytes + bytes / 8 &&
          (best == blocks_.end() || (*it)->bytes < (*best)->bytes))
        best = it;
    Header* const found = best == blocks_.end() ? nullptr : *best;
    if (found != nullptr) {
      blocks_.erase(best);
      kept_ -= found->bytes;
      used_ += found->bytes;
    } else {
      while (!blocks_.empty() && used_ + kept_ + bytes > most_) drop();
    }
    return found;
  }

  // A new block is used.
  void add(const Header* block) {
    const std::lock_guard lock(mutex_);
    used_ += block->bytes;
    most_ = std::max(most_, used_);
  }

  void give(Header* block) {
    const std::lock_guard lock(mutex_);
    used_ -= block->bytes;
    kept_ += block->bytes;
    blocks_.push_back(block);
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    while (!blocks_.empty()) drop();
  }

 private:
  void drop() {
    kept_ -= blocks_.front()->bytes;
    c10::free_cpu(blocks_.front());
    blocks_.erase(blocks_.begin());
  }

  std::mutex mutex_;
  std::vector<Header*> blocks_;
  size_t used_ = 0, kept_ = 0, most_ = 0;
};
Kept& kept() {
  static auto* const kept = new Kept;  // tensors may outlive static objects
  return *kept;
}

void give_back(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  g_count.add(-static_cast<int64_t>(header->asked));
  if (header->size_class == kMappedClass) return kept().give(header);
  Cache& cache = t_cache;
  if (header->size_class == kNoClass || cache.closed) return c10::free_cpu(header);
  const size_t bytes = class_of(header->asked).bytes;
  if (cache.bytes + bytes > kCached) return c10::free_cpu(header);
  if (cache.bytes == 0) t_drain.armed = true;  // constructs it: its destructor runs
  cache.bytes += bytes;
  Header*& head = cache.heads[header->size_class];
  header->next = head;
  head = header;
}

[[noreturn]] void fail_full(size_t size) {
  const auto mb = [](int64_t bytes) {
    return fmt::format("{:.1f} MB", static_cast<double>(bytes) / (1 << 20));
  };
  const int64_t limit = g_limit.load(std::memory_order_relaxed);
  C10_THROW_ERROR(
      OutOfMemoryError,
      fmt::format("no room for a tensor of {}: {}{} are in use", mb(static_cast<int64_t>(size)),
                  mb(g_count.value().live), limit > 0 ? " of " + mb(limit) : ""));
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::kCPU)};
    void* data = take(size) + 1;
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static Header* take(size_t size) {
    const int64_t limit = g_limit.load(std::memory_order_relaxed);
    if (limit > 0 && g_count.value().live + static_cast<int64_t>(size) > limit) fail_full(size);
    SizeClass fit{kNoClass, size};
    Header* header = nullptr;
    if (size <= kLargest) {
      fit = class_of(size);
      Header*& head = t_cache.heads[fit.index];
      if (head != nullptr) {
        header = std::exchange(head, head->next);
        t_cache.bytes -= fit.bytes;
      }
    }
    const size_t bytes = fit.bytes + sizeof(Header);
    const bool mapped = size >= kMapped;
    if (mapped) {
      fit.index = kMappedClass;
      header = kept().take(bytes);
    }
    if (header == nullptr) {
      header = make(bytes);
      if (header == nullptr && mapped) {
        kept().clear();
        header = make(bytes);
      }
      if (header == nullptr) fail_full(size);
      header->bytes = bytes;
      if (mapped) kept().add(header);
    }
    header->asked = size;
    header->size_class = fit.index;
    g_count.add(static_cast<int64_t>(size));
    return header;
  }

  static Header* make(size_t bytes) {
    try {
      return new (c10::alloc_cpu(bytes)) Header;
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
};

}  // namespace

void install_allocator() {
  static Allocator allocator;
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator, /*priority=*/1); });
}

MemoryCount cpu_memory() noexcept {
  return g_count.value();
}

void limit_memory(int64_t bytes) noexcept {
  g_limit.store(bytes);
}

void reset_peak() noexcept {
  g_count.reset_peak();
}

}  // namespace nns::tensor
