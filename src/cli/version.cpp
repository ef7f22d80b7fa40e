// `nnscaler version`.
#include <cstdio>

#include "base/version.h"
#include "cli/command.h"

namespace nns::cli {
namespace {

int print_version() {
  std::printf("nnscaler %s\n", kVersion);
  return 0;
}

}  // namespace

Command version_command() {
  return {.name = "version", .summary = "Print the version", .act = &print_version};
}

}  // namespace nns::cli
