// `nnscaler verify`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command verify_command() {
  return {
      .name = "verify",
      .summary = "Compare a job under its plan with one device, in float64",
      .positionals = {{"JOB", Takes::text,
                       "recipe (.lua) or .yaml file; with --op the module that registers it"},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub!"}},
      .options = {{"--op", Takes::text, "check this operator instead of a job", "NAME"},
                  {"--steps", Takes::integer, "training steps to compare, 3 by default", "N"},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler verify recipes/nanogpt.lua preset=tiny pas_policy=tp "
                   "compute_config.runtime_ngpus=2",
                   "nnscaler verify --op aten::softmax",
                   "nnscaler verify mylib.operators --op mylib::swiglu"},
      .notes =
          "The ranks are threads of this process: runtime_ngpus of them, else plan_ngpus, else\n"
          "2. Exit code 1: something differs.\n"
          "An operator is pure, has the types and the derivative that are said, and each way of\n"
          "splitting it gives the whole. JOB is then a recipe, or a module found by require; it "
          "is\n"
          "left out for operators of the table.",
      .own_help = true,
  };
}

}  // namespace nns::cli
