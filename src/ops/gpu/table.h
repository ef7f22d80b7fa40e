// The table of kernels of a device: for each call the routine of its type, on packs of 16 bytes
// where all rows begin and end on their borders. A device names its 16-bit types and runs routines.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "ops/gpu/classes.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/norm.h"

namespace nns::ops::gpu {

inline constexpr int64_t kBorder = 16;  // bytes of a pack
// Bytes of scratch memory that a block may have: of the 48 KiB that every GPU gives, what `reduce`
// leaves.
inline constexpr int64_t kScratch = 47 << 10;

// Whether rows of `width` at these places are made of packs.
inline bool packed(Type type, int64_t width, std::initializer_list<const void*> places) {
  const int64_t size = type == Type::f32 ? 4 : 2;
  return width * size % kBorder == 0 &&
         std::all_of(places.begin(), places.end(), [](const void* place) {
           return reinterpret_cast<uintptr_t>(place) % kBorder == 0;
         });
}

// Calls run(routine) with the routine of a type, n elements at a time.
template <class Device, template <class, int> class Routine, class A, class Run>
const char* with_type(const A& a, bool packs, const Run& run) {
  using Bf16 = typename Device::Bf16;
  using Half = typename Device::Half;
  switch (a.type) {
    case Type::f32:
      return packs ? run(Routine<float, 4>{a}, 4) : run(Routine<float, 1>{a}, 1);
    case Type::bf16:
      return packs ? run(Routine<Bf16, 8>{a}, 8) : run(Routine<Bf16, 1>{a}, 1);
    case Type::f16:
      return packs ? run(Routine<Half, 8>{a}, 8) : run(Routine<Half, 1>{a}, 1);
    case Type::f64:
      break;
  }
  return "no kernel for float64";
}

// A block for each of `rows`, with `floats` of scratch memory if a block has so many.
template <class Device, template <class, int> class Routine, class A>
const char* by_rows(const A& a, void* stream, int64_t rows, int64_t width, bool packs,
                    int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  return with_type<Device, Routine>(a, packs, [&](const auto& routine, int n) {
    return Device::rows(routine, rows, width / n, bytes <= kScratch ? bytes : 0, stream);
  });
}

template <class Device>
struct Table {
  static const char* normalize(const Norm& a, void* stream) {
    const bool packs = packed(a.type, a.width, {a.x, a.addend, a.weight, a.bias, a.sum, a.y});
    return by_rows<Device, Normalize>(a, stream, a.rows, a.width, packs, a.width);
  }

  static const char* normalize_backward(const NormBackward& a, void* stream) {
    const bool packs = packed(a.type, a.width, {a.gradient, a.x, a.weight, a.addend, a.dx});
    const int64_t sums = (a.dweight != nullptr) + (a.dbias != nullptr);
    return by_rows<Device, NormalizeBackward>(a, stream, a.parts, a.width, packs, sums * a.width);
  }

  static const char* log_sums(const LogSums& a, void* stream) {
    const bool packs = packed(a.type, a.classes, {a.scores});
    return by_rows<Device, SumScores>(a, stream, a.rows, a.classes, packs, 0);
  }

  static const char* softmax(const Softmax& a, void* stream) {
    const bool packs = packed(a.type, a.classes, {a.scores, a.y});
    return by_rows<Device, ToSoftmax>(a, stream, a.rows, a.classes, packs, 0);
  }

  static const char* swiglu(const Swiglu& a, void* stream) {
    return elements<Gate>(a, stream, packed(a.type, 0, {a.gate, a.up, a.y}));
  }

  static const char* swiglu_backward(const SwigluBackward& a, void* stream) {
    return elements<GateBackward>(a, stream,
                                  packed(a.type, 0, {a.gradient, a.gate, a.up, a.dgate, a.dup}));
  }

  static const char* rope(const Rope& a, void* stream) {
    const bool packs = packed(a.type, a.width / 2, {a.x, a.cos, a.sin, a.y});
    return with_type<Device, Turn>(a, packs, [&](const auto& routine, int n) {
      return Device::lanes(routine, a.rows * (a.width / 2 / n), stream);
    });
  }

  static const char* dropout(const Dropout& a, void* stream) {
    const int64_t lanes = a.runs * tiles_of(a.run) * kTileBlocks;
    if (a.x == nullptr) return Device::lanes(Keep<float, float>{a}, lanes, stream);
    switch (a.type) {
      case Type::f32:
        return Device::lanes(Keep<float, float>{a}, lanes, stream);
      case Type::bf16:
        return Device::lanes(Keep<typename Device::Bf16, float>{a}, lanes, stream);
      case Type::f16:
        return Device::lanes(Keep<typename Device::Half, float>{a}, lanes, stream);
      case Type::f64:
        return Device::lanes(Keep<double, double>{a}, lanes, stream);
    }
    return "no kernel for this type";
  }

  static constexpr Kernels all() {
    return {normalize, normalize_backward, swiglu,  swiglu_backward,
            rope,      log_sums,           softmax, dropout};
  }

 private:
  template <template <class, int> class Routine, class A>
  static const char* elements(const A& a, void* stream, bool packs) {
    return with_type<Device, Routine>(a, packs, [&](const auto& routine, int n) {
      return Device::lanes(routine, (a.count + n - 1) / n, stream);
    });
  }
};

// Lanes of a block whose rows are `steps` packs long: whole warps, one pack a lane if possible.
inline constexpr int kWarp = 32, kMostLanes = 512;
constexpr int lanes_for(int64_t steps) {
  int lanes = kWarp;
  while (lanes < kMostLanes && lanes < steps) lanes *= 2;
  return lanes;
}

}  // namespace nns::ops::gpu
