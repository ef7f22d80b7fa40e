// `nnscaler plan`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command plan_command() {
  return {
      .name = "plan",
      .summary = "Show the plan of a job and the time line of its schedule; train nothing",
      .positionals = {{"JOB", Takes::text, "recipe (.lua) or .yaml file", {}, true},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub!"}},
      .options =
          {{"--world", Takes::integer,
            "ranks of the run, where the job does not say (compute_config.runtime_ngpus)", "N",
            false, 1},
           {"--hardware", Takes::text,
            "price the plan, and others, on described hardware: h100, a100-80x4 (devices a "
            "host), cluster.yaml",
            "NAME"},
           {"--why", Takes::text,
            "only say why a weight, buffer, input or the results of a module lie as they do",
            "NAME"},
           {"--html", Takes::text, "write the report as one page that needs nothing else", "FILE"},
           {"--trace", Takes::text,
            "write the predicted step as a Chrome trace (chrome://tracing, Perfetto)", "FILE"},
           {"--diff", Takes::text, "say where the plan differs from that of a file", "PLAN.json"},
           {"--sweep", Takes::text, "price the plan for each number of ranks", "world=8,64,512"},
           {"--plan-out", Takes::text, "write the plan as JSON", "FILE"},
           {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler plan recipes/nanogpt.lua --world 4 pas_policy=pp",
                   "nnscaler plan recipes/nanogpt.lua --world 2 pas_policy=tp --plan-out tp.json",
                   "nnscaler plan recipes/llama3.lua preset=8b pas_policy=autodist --hardware h100 "
                   "--world 8",
                   "nnscaler run recipes/nanogpt.lua -n 2 pas_policy=tp.json"},
      .notes = "The programs of all ranks (64 at most) are made and checked against each other.",
      .own_help = true,
  };
}

}  // namespace nns::cli
