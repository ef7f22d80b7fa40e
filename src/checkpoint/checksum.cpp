// XXH64 written from its specification: four lanes of 8 bytes, merged, then the tail and a final
// mix.
#include "checkpoint/checksum.h"

#include <bit>
#include <cstring>

namespace nns::checkpoint {
namespace {

constexpr uint64_t kP1 = 0x9E3779B185EBCA87ull, kP2 = 0xC2B2AE3D27D4EB4Full,
                   kP3 = 0x165667B19E3779F9ull, kP4 = 0x85EBCA77C2B2AE63ull,
                   kP5 = 0x27D4EB2F165667C5ull;
static_assert(std::endian::native == std::endian::little, "files are read as little-endian");

template <class T>
T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kP2, 31) * kP1;
}

uint64_t merge(uint64_t hash, uint64_t lane) {
  return (hash ^ round(0, lane)) * kP1 + kP4;
}

}  // namespace

uint64_t checksum(std::string_view bytes) {
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  uint64_t hash = kP5;
  if (bytes.size() >= 32) {
    uint64_t a = kP1 + kP2, b = kP2, c = 0, d = 0 - kP1;
    for (; end - p >= 32; p += 32) {
      a = round(a, load<uint64_t>(p));
      b = round(b, load<uint64_t>(p + 8));
      c = round(c, load<uint64_t>(p + 16));
      d = round(d, load<uint64_t>(p + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
  }
  hash += bytes.size();
  for (; end - p >= 8; p += 8) hash = std::rotl(hash ^ round(0, load<uint64_t>(p)), 27) * kP1 + kP4;
  if (end - p >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(p) * kP1), 23) * kP2 + kP3;
    p += 4;
  }
  for (; p != end; ++p) hash = std::rotl(hash ^ (static_cast<uint8_t>(*p) * kP5), 11) * kP1;
  hash = (hash ^ (hash >> 33)) * kP2;
  hash = (hash ^ (hash >> 29)) * kP3;
  return hash ^ (hash >> 32);
}

}  // namespace nns::checkpoint
