// Entry point.
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "cli/command.h"

namespace {

// Training asks for the same memory in every step. Left to itself, glibc gives freed blocks back to
// the system in between, and each step pays for clearing their pages again.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, -1);
}

// Pages of 2 MB save clearing, translating and (where ranks read each other's memory) pinning 512
// small ones. LibTorch asks for them for each tensor of 2 MB or more, once told to; here the heap
// gets them, for all that is smaller. Untouched, they cost nothing.
void use_large_pages() {
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);  // what the user set stays
  constexpr uintptr_t kHeapBytes = 1 << 30, kPageBytes = 2 << 20;
  const auto before = reinterpret_cast<uintptr_t>(sbrk(0));
  mallopt(M_TOP_PAD, kHeapBytes);
  void* volatile more_than_is_there = malloc(kPageBytes);
  free(more_than_is_there);
  mallopt(M_TOP_PAD, 128 << 10);  // what glibc starts with
  const uintptr_t start = (before + kPageBytes - 1) & ~(kPageBytes - 1);
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  // A kernel that has none says so, and nothing is lost.
  if (start < end) madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
}

// What was printed may still be on its way: a full disk is found here at the latest.
void check_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  nns::fail(nns::ErrorKind::state, "[cli.output] cannot write all output to stdout: {}",
            std::strerror(errno));
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  use_large_pages();
  try {
    const int code = nns::cli::dispatch(argc, argv);
    check_output();
    return code;
  } catch (const nns::Error& e) {
    nns::cli::report(e);
    return e.exit_code();
  } catch (const std::exception& e) {
    nns::cli::report(nns::Error(nns::ErrorKind::internal, e.what()));
    return 1;
  }
}
