// Entry point.
#include <malloc.h>

#include <exception>

#include "cli/command.h"

namespace {

// Training asks for the same memory in every step. Left to itself, glibc gives freed blocks back to
// the system in between, and each step pays for clearing their pages again.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  try {
    return nns::cli::dispatch(argc, argv);
  } catch (const nns::Error& e) {
    nns::cli::report(e);
    return e.exit_code();
  } catch (const std::exception& e) {
    nns::cli::report(nns::Error(nns::ErrorKind::internal, e.what()));
    return 1;
  }
}
