// Where a rank is: step, phase and the operation that it waits in, so that others can say where it
// was when it was lost. The slot is shared memory: on one host its last content outlives the rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

namespace nns::launch {

enum class Phase : uint32_t {
  setup,
  step,
  forward,
  backward,
  update,
  evaluation,
  save,
  interrupted
};
enum class Operation : uint32_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier,
  exchange,
  group,
};

struct Slot {
  static constexpr uint32_t kGroups = 256, kGroupText = 40;
  std::atomic<int64_t> step;  // from 1; 0 before the first
  std::atomic<Phase> phase;
  std::atomic<Operation> operation;
  std::atomic<uint32_t> group;  // of the operation
  std::atomic<uint64_t> calls;  // grows when an operation begins and when it ends
  std::atomic<uint32_t> groups;
  char group_texts[kGroups][kGroupText];
};

// The slot of this process.
Slot& slot();
// Descriptor of its memory, for others of this host.
int slot_descriptor();
// The slot of another process of this host, or nullptr when it cannot be seen. Never unmapped.
const Slot* slot_of(int process, int descriptor);

// Number of a group for `Waiting`; `text` lists its ranks.
uint32_t note_group(const std::string& text);

// "step 3, forward, all_reduce of ranks 0,1"
std::string describe(const Slot& slot);

// While it lives, the rank is in an operation.
class Waiting {
 public:
  Waiting(Operation operation, uint32_t group) {
    Slot& s = slot();
    s.group.store(group, std::memory_order_relaxed);
    s.operation.store(operation, std::memory_order_relaxed);
    s.calls.fetch_add(1, std::memory_order_relaxed);
  }
  // An error leaves the slot as it is: who reports it says where it was.
  ~Waiting() {
    if (std::uncaught_exceptions() > 0) return;
    Slot& s = slot();
    s.operation.store(Operation::none, std::memory_order_relaxed);
    s.calls.fetch_add(1, std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
};

}  // namespace nns::launch
