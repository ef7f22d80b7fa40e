// `nnscaler run`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command run_command() {
  return {
      .name = "run",
      .summary = "Train the job of a recipe or YAML file",
      .positionals = {{"JOB", Takes::text, "recipe (.lua) or .yaml file", {}, true},
                      {"CHANGES", Takes::texts,
                       "key.sub=value sets a key or a parameter of the "
                       "recipe, key.sub! deletes a key"}},
      .options = {{"-n,--ranks", Takes::integer,
                   "ranks of this host that train together, each a process (threads of one with "
                   "comm.backend=local)",
                   "N", false, 1},
                  {"--max-restarts", Takes::integer,
                   "start again from the newest whole checkpoint, at most so many times, when a "
                   "rank is lost or fails",
                   "N", false, 1},
                  {"--metrics", Takes::text, "write one JSON object a step", "FILE.jsonl"},
                  {"--record", Takes::text, "keep what the first steps compute, for nnscaler diff",
                   "FOLDER"},
                  {"--record-steps", Takes::integer, "how many steps --record keeps, 3 by default",
                   "N", false, 1},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"},
                  {"--print-config", Takes::flag, "print the complete job as YAML and stop"}},
      .examples = {"nnscaler run recipes/nanogpt.lua preset=tiny",
                   "nnscaler run job.yaml optimizer.args.lr=3e-4 checkpoint.resume_from=last",
                   "nnscaler run recipes/nanogpt.lua -n 2 pas_policy=tp",
                   "nnscaler run recipes/nanogpt.lua --help"},
      .notes =
          "With a recipe, --help lists its own parameters. docs/configuration.md lists all keys.",
      .own_help = true,
  };
}

}  // namespace nns::cli
