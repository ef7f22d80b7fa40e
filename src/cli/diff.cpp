// `nnscaler diff`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command diff_command() {
  return {
      .name = "diff",
      .summary = "Name the first operator in which two runs differ",
      .positionals = {{"JOB_A",
                       Takes::text,
                       "recipe (.lua), .yaml file, or folder of nnscaler run --record",
                       {},
                       true},
                      {"JOB_B", Takes::text, "another one, or the same, as if left out"},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub! of both"}},
      .options = {{"--a", Takes::texts, "changes of A alone", "CHANGES"},
                  {"--b", Takes::texts, "changes of B alone", "CHANGES"},
                  {"--steps", Takes::integer, "training steps to compare, 3 by default", "N", false,
                   1},
                  {"--limit", Takes::number,
                   "relative difference that is rounding; by the coarser dtype if not given", "X",
                   false, 0},
                  {"--record", Takes::text, "keep the recordings of both in this folder", "FOLDER"},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler diff recipes/nanogpt.lua preset=tiny --b pas_policy=megatron "
                   "compute_config.plan_ngpus=2",
                   "nnscaler diff old.lua new.lua --steps 1",
                   "nnscaler diff recordings/before job.yaml"},
      .notes =
          "Both train step by step, B with the weights that A had before each step, in float64\n"
          "unless they have different precisions. Each value of the model and its gradient is put\n"
          "together from the parts that ranks hold. The ranks are threads of this process, as "
          "many\n"
          "as compute_config says, else one. Generated programs are kept in memory, unless a "
          "change\n"
          "sets gen_savedir: then edited files run. Exit code 1: something differs.",
      .own_help = false,
  };
}

}  // namespace nns::cli
