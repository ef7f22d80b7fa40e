// `nnscaler import`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command import_command() {
  return {
      .name = "import",
      .summary = "Look into a model that PyTorch exported",
      .positionals = {{"MODEL", Takes::text, "a .pt2 file of torch.export.save", {}, true}},
      .options = {{"--json", Takes::flag, "print JSON"}},
      .examples = {"nnscaler import gpt.pt2"},
      .notes =
          "Nothing of the file is executed. A job trains it by `model = function() return\n"
          "nnscaler.import 'gpt.pt2' end`, or in YAML by `model: { type: nnscaler.import, args:\n"
          "{ path: gpt.pt2 } }`.\n",
  };
}

}  // namespace nns::cli
