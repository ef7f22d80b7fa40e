// `nnscaler compile`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command compile_command() {
  return {
      .name = "compile",
      .summary = "Write the generated program of a job without training",
      .positionals = {{"JOB", Takes::text, "recipe (.lua) or .yaml file", {}, true},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub!"}},
      .options = {{"--rank", Takes::integer, "write the programs of this rank only", "R"},
                  {"--report", Takes::flag, "print memory and communication of each rank"},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler compile recipes/nanogpt.lua preset=cpu gen_savedir=out"},
      .notes = "Prints the path of each file that was written.",
      .own_help = true,
  };
}

}  // namespace nns::cli
