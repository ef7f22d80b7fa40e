// Frontier: what the calls so far leave to those that follow, and what a further call costs there.
//
// Of each value that is still read: how it was made, in which other layouts it exists already,
// which of these have a gradient, and, where memory counts, which of their memory backward keeps.
// All that a later call costs depends on this alone.
#pragma once

#include <string>
#include <vector>

#include "solve/space.h"

namespace nns::solve {

constexpr uint8_t kNone = 0xff;
constexpr uint8_t kHeld = 0xfe;  // of memory that backward reads already

// Plain bytes: a frontier is a key.
struct Entry {
  Code made = kWhole;                  // a leaf that rests: its home
  uint8_t root = kNone;                // number of its memory in Frontier::memory
  uint8_t contiguous = 1;              // elements in row-major order
  uint8_t has_gradient = 0;            // the value as it was made
  Code first = kNone;                  // of a weight of several uses: the first use
  uint8_t differs = 0;                 // … and whether another one wants another layout
  uint16_t exists = 0, gradients = 0;  // conversions by code
  uint8_t roots[kCodes];               // of conversions with memory of their own
  uint8_t again = 0;                   // a weight in shards: whether backward has gathered it
  // By code, where a norm gives the latest gradient, what a sum with another then spares
  // (Space::spared); of the value as it was made under `made`.
  uint8_t norms[kCodes] = {};
  uint8_t linked = kNone;  // the code whose gradient is that under `made` too
};
static_assert(sizeof(Entry) == 34);

// Memory that values lie in and backward does not read yet.
struct Memory {
  int64_t bytes = 0;
  int64_t kept = 0;  // whether it does, while a call is carried out
};

struct Frontier {
  std::vector<Entry> entries;
  std::vector<Memory> memory;  // empty where memory does not count

  std::string key() const;
  static Frontier of(const std::string& key, size_t entries);
};

// What a call adds to a plan.
struct Added {
  double seconds = 0;   // of a step
  int64_t resting = 0;  // bytes
  int64_t saved = 0;    // bytes of a micro-batch
  double micro = 0;     // of `seconds`, those of one micro-batch
  double forward = 0;   // of `micro`, those of forward
  double gathers = 0;   // of `forward`, those of weights in shards
  double sent = 0;      // of `micro`, those of communication
  double update = 0;    // of `seconds`, those of updates of weights
};

class Mover {
 public:
  // `memory`: frontiers tell of memory. `zero`: level at which weights rest in shards.
  Mover(const Space& space, bool memory, int zero = plan::Zero::none)
      : space_(space), memory_(memory), zero_(zero) {}

  // Carries a frontier over a step, as its candidate number `candidate`. `homes` chooses where the
  // weights of several uses that enter here rest, a bit each: as this step uses them (0), or whole.
  // Returns false where no plan has this: then `frontier` is undefined.
  bool move(int step, size_t candidate, uint32_t homes, Frontier& frontier, Added& added) const;

  // Whether frontiers tell of memory.
  bool memory() const { return memory_; }

  // How many choices of homes there are: 2 to the weights of several uses that enter.
  uint32_t homes(int step) const;

  // What a plan costs more at most from `a` on than the same plan from `b` on: seconds of a step,
  // bytes of a micro-batch where memory counts; nothing where that has no bound, or is more than
  // so many seconds. `live`: the values of both.
  struct Excess {
    double seconds = 0;
    int64_t bytes = 0;
  };
  std::optional<Excess> excess(const Frontier& a, const Frontier& b, const std::vector<Live>& live,
                               double seconds) const;

 private:
  struct Work;
  bool decides(const Live& live) const;
  void use(Work& work, Entry& entry, const Live& live, Code code, int gradients, bool read,
           double spared = 0) const;
  bool settle(Work& work, Entry& entry, const Live& live, Code code, bool whole) const;
  void read_alone(Work& work, int leaf, Code code, int gradients, bool read) const;
  void gather_again(Work& work, Entry& entry, const Live& live) const;
  int64_t excess_bytes(const Frontier& a, const Frontier& b, const std::vector<Live>& live) const;

  const Space& space_;
  bool memory_;
  int zero_;
};

}  // namespace nns::solve
