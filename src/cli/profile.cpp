// `nnscaler profile`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command profile_command() {
  return {
      .name = "profile",
      .summary = "Measure this machine, and the calls of a job as they run, for the planner",
      .positionals = {{"JOB", Takes::text, "recipe (.lua) or .yaml file whose calls are measured"},
                      {"CHANGES", Takes::texts, "key.sub=value, key.sub!"}},
      .options = {{"-n,--ranks", Takes::integer,
                   "ranks of this host that run at once, each a process", "N", false, 1},
                  {"--seconds", Takes::integer, "that steps of the job take, 20 unless told", "N",
                   false, 1},
                  {"--out", Takes::text,
                   "where the profile is kept, by default in the user's cache, as --hardware "
                   "measured finds it",
                   "FILE.json"},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler profile -n 2",
                   "nnscaler profile recipes/nanogpt.lua -n 2 threads=1 pas_policy=tp",
                   "nnscaler plan recipes/nanogpt.lua --world 2 threads=1 pas_policy=tp --hardware "
                   "measured"},
      .notes = "Calls that the file has of the same machine stay in it.",
  };
}

}  // namespace nns::cli
