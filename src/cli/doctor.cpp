// `nnscaler doctor`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command doctor_command() {
  return {
      .name = "doctor",
      .summary = "Say what this installation and machine offer",
      .options = {{"--schema", Takes::flag, "print docs/configuration.md"}},
      .examples = {"nnscaler doctor"},
  };
}

}  // namespace nns::cli
