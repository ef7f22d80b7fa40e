// The mask of dropout by ATen operators on 64-bit integers, where there is no kernel for it: the
// same bits, on any device that LibTorch knows.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "ops/random.h"

namespace nns::ops {
namespace {

constexpr int64_t kLow = 0xFFFFFFFF;

// The words that `word` gives for a tensor of element indices.
at::Tensor words_of(const Stream& s, const at::Tensor& element) {
  const at::Tensor inside = element.bitwise_and(kTile - 1);
  const at::Tensor block =
      element.__rshift__(6).mul(kTileBlocks).add(inside.bitwise_and(kTileBlocks - 1));
  std::array<at::Tensor, 4> c{block.bitwise_and(kLow), block.__rshift__(32),
                              at::zeros_like(block).add_(int64_t{s.step}),
                              at::zeros_like(block).add_(int64_t{s.micro})};
  uint32_t key0 = s.key0, key1 = s.key1;
  for (int round = 0; round < kRounds; ++round) {
    // Products wrap at 2^64; the shift of a negative product brings ones that the mask takes away.
    const at::Tensor p0 = c[0].mul(int64_t{kMultiplier0}), p1 = c[2].mul(int64_t{kMultiplier1});
    c = {p1.__rshift__(32).bitwise_and_(kLow).bitwise_xor_(c[1]).bitwise_xor_(int64_t{key0}),
         p1.bitwise_and(kLow),
         p0.__rshift__(32).bitwise_and_(kLow).bitwise_xor_(c[3]).bitwise_xor_(int64_t{key1}),
         p0.bitwise_and(kLow)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  const at::Tensor which = inside.__rshift__(4);
  at::Tensor words = c[3];
  for (int64_t w = 2; w >= 0; --w) words = at::where(which.eq(w), c[static_cast<size_t>(w)], words);
  return words;
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& like, double p, std::string_view key, int64_t seed,
                        int64_t step, int64_t micro, OptionalShape offset, OptionalShape full) {
  check_probability(p);
  const Stream stream = checked_stream(key, seed, step, micro);
  const Slice slice = checked_slice(like.sizes(), offset, full);
  if (gpu_kernels(like.device()) != nullptr)
    return dropout_gpu({}, at::empty(like.sizes(), like.options().dtype(at::kBool)), gpu::Type::f32,
                       stream, slice, p);
  at::Tensor element = at::scalar_tensor(0, like.options().dtype(at::kLong));
  int64_t stride = 1;
  for (int64_t d = like.dim() - 1; d >= 0; --d) {
    const auto at = static_cast<size_t>(d);
    const at::Tensor index = at::arange(like.size(d), element.options());
    Shape shape(like.sizes().size(), 1);
    shape[at] = like.size(d);
    element = element.add(index.add(full ? (*offset)[at] : 0).mul(stride).view(shape));
    stride *= full ? (*full)[at] : like.size(d);
  }
  return words_of(stream, element).ge(static_cast<int64_t>(drop_threshold(p)));
}

at::Tensor dropout_composed(const at::Tensor& input, double p, std::string_view key, int64_t seed,
                            int64_t step, int64_t micro, OptionalShape offset, OptionalShape full) {
  const at::Tensor keep = dropout_mask(input, p, key, seed, step, micro, offset, full);
  if (p == 1) return at::zeros_like(input);  // where the factor below is infinite
  return at::where(keep, input.mul(1.0 / (1.0 - p)), at::zeros_like(input));
}

}  // namespace nns::ops
