// Many 32-bit draws at once: what `word` gives one by one, from vector registers where the machine
// has them. Integers only, so both ways give the same bits. No LibTorch.
#pragma once

#include <cstdint>

#include "ops/philox.h"

namespace nns::ops {

// Writes word(s, first) … word(s, first + count - 1) to `out`.
void draw_words(const Stream& s, uint64_t first, int64_t count, uint32_t* out);

}  // namespace nns::ops
