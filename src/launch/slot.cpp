#include "launch/slot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace nns::launch {
namespace {

constexpr const char* kPhases[] = {"setup",  "step",       "forward", "backward",
                                   "update", "evaluation", "save",    "interrupted"};
constexpr const char* kOperations[] = {"",           "all_reduce", "all_gather", "reduce_scatter",
                                       "all_to_all", "broadcast",  "send",       "recv",
                                       "barrier",    "exchange",   "group"};

// The descriptor of memory that a watching process can read, or minus the error.
int memory() {
  static const int fd = [] {
    const int made = memfd_create("nnscaler-slot", MFD_CLOEXEC);
    return made < 0 || ftruncate(made, sizeof(Slot)) != 0 ? -errno : made;
  }();
  return fd;
}

}  // namespace

int slot_descriptor() {
  if (memory() < 0)
    fail(ErrorKind::state, "[launch.slot] no shared memory: {}", std::strerror(-memory()));
  return memory();
}

Slot& slot() {
  static Slot& mine = []() -> Slot& {
    // A process that nobody watches does without (a limit on file sizes forbids shared memory).
    const int flags = memory() < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void* at =
        mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, flags, std::max(memory(), -1), 0);
    if (at == MAP_FAILED)
      fail(ErrorKind::state, "[launch.slot] no shared memory: {}", std::strerror(errno));
    return *static_cast<Slot*>(at);  // zeros are its first state
  }();
  return mine;
}

const Slot* slot_of(int process, int descriptor) {
  const int fd =
      ::open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = lseek(fd, 0, SEEK_END) == static_cast<off_t>(sizeof(Slot))
                 ? mmap(nullptr, sizeof(Slot), PROT_READ, MAP_SHARED, fd, 0)
                 : MAP_FAILED;
  ::close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<const Slot*>(at);
}

uint32_t note_group(const std::string& text) {
  Slot& s = slot();
  const uint32_t known = std::min(s.groups.load(), Slot::kGroups - 1);
  for (uint32_t i = 0; i < known; ++i)
    if (text.compare(0, Slot::kGroupText - 1, s.group_texts[i]) == 0) return i;
  // When the table is full the last place stands for all further groups.
  std::strncpy(s.group_texts[known], known + 1 < Slot::kGroups ? text.c_str() : "several groups",
               Slot::kGroupText - 1);
  if (known + 1 < Slot::kGroups) s.groups.store(known + 1);
  return known;
}

std::string describe(const Slot& s) {
  const auto phase = std::min<size_t>(static_cast<size_t>(s.phase.load()), std::size(kPhases) - 1);
  const auto operation =
      std::min<size_t>(static_cast<size_t>(s.operation.load()), std::size(kOperations) - 1);
  const int64_t step = s.step.load();
  std::string text = step > 0 ? fmt::format("step {}", step) : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (step == 0 || static_cast<Phase>(phase) != Phase::step) add(kPhases[phase]);
  if (operation != 0)
    add(fmt::format("{} of ranks {}", kOperations[operation],
                    s.group_texts[std::min(s.group.load(), Slot::kGroups - 1)]));
  return text;
}

}  // namespace nns::launch
