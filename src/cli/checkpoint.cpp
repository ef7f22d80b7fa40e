// `nnscaler checkpoint`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command checkpoint_command() {
  return {
      .name = "checkpoint",
      .summary = "Look into checkpoints",
      .positionals = {{"ACTION", Takes::text, "inspect", {}, true},
                      {"CHECKPOINT", Takes::text, "folder of a checkpoint", {}, true}},
      .options = {{"--json", Takes::flag, "print JSON"}},
      .examples = {"nnscaler checkpoint inspect checkpoints/last"},
  };
}

}  // namespace nns::cli
