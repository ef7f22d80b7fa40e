#include "cli/command.h"

namespace nns::cli {

Command verify_command() {
  return {
      .name = "verify",
      .summary = "Compare a job under its plan with one device, in float64",
      .positionals = {{"JOB", Takes::text, "recipe (.lua) or .yaml file", {}, true},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub!"}},
      .options = {{"--steps", Takes::integer, "training steps to compare, 3 by default", "N"},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler verify recipes/nanogpt.lua preset=tiny pas_policy=tp "
                   "compute_config.runtime_ngpus=2"},
      .notes =
          "The ranks are threads of this process: runtime_ngpus of them, else plan_ngpus, else\n"
          "2. Exit code 1: something differs.",
      .own_help = true,
  };
}

}  // namespace nns::cli
