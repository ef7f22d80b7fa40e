#include "tensor/host.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/alloc_cpu.h>

#include <memory>

#include "tensor/calling.h"

namespace nns::tensor {
namespace {

Counter g_count;

struct Block {
  c10::DataPtr memory;
  int64_t size = 0;
};

void give_back(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  g_count.add(-block->size);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    auto block = std::make_unique<Block>();
    block->size = static_cast<int64_t>(size);
    if (size > 0 && cuda_problem().empty()) {
      block->memory = at::globalContext().getPinnedMemoryAllocator()->allocate(size);
    } else if (size > 0) {
      void* data = c10::alloc_cpu(size);
      block->memory = {data, data, &c10::free_cpu, c10::Device(c10::kCPU)};
    }
    g_count.add(block->size);
    void* data = block->memory.get();
    return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

Allocator* allocator() {
  static Allocator one;
  return &one;
}
constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

}  // namespace

at::Tensor host_empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_generic(shape, allocator(), kCpu, dtype, std::nullopt));
}

at::Tensor to_host(const at::Tensor& x) {
  if (!x.is_non_overlapping_and_dense()) return host_empty(x.sizes(), x.scalar_type()).copy_(x);
  return at::Tensor(at::detail::empty_strided_generic(x.sizes(), x.strides(), allocator(), kCpu,
                                                      x.scalar_type()))
      .copy_(x);
}

at::Tensor from_host(const at::Tensor& x, const std::string& device) {
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(device)).copy_(x);
}

MemoryCount host_memory() noexcept {
  return g_count.value();
}

void reset_host_peak() noexcept {
  g_count.reset_peak();
}

}  // namespace nns::tensor
