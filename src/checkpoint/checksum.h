// The checksum that a manifest carries for each tensor: XXH64 (seed 0), a published 64-bit hash
// that runs at memory speed and gives the same value on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace nns::checkpoint {

// Returns the XXH64 of the bytes.
uint64_t checksum(std::string_view bytes);

}  // namespace nns::checkpoint
