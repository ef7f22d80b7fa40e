// What the processor of this machine can do, where what LibTorch does depends on it.
#pragma once

namespace nns {

// Whether LibTorch has oneDNN make 16-bit products, which packs their operands. On x86 that takes
// AVX-512 (BW, DQ, VL) or AVX-NE-CONVERT, as ATen asks (aten/src/ATen/native/mkldnn/Utils.h);
// elsewhere loops of ATen's make them in place.
bool packs_16_bit_products();

}  // namespace nns
