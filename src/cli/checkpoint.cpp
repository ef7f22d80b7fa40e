// `nnscaler checkpoint`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command checkpoint_command() {
  return {
      .name = "checkpoint",
      .summary = "Look into checkpoints, compare, merge and export them",
      .positionals = {{"ACTION", Takes::text, "inspect, merge, export, check or diff", {}, true},
                      {"CHECKPOINT",
                       Takes::text,
                       "folder of a checkpoint; export, check: or of a transformers model",
                       {},
                       true},
                      {"FOLDER", Takes::text,
                       "merge, export: folder to write; diff: the other checkpoint"}},
      .options = {{"--json", Takes::flag, "inspect: print JSON"},
                  {"--dtype", Takes::text, "export: convert floating weights to it", "DTYPE"},
                  {"--shard-mib", Takes::integer,
                   "export: begin another file when one holds so many MiB (2048)", "N", false, 1},
                  {"--layers", Takes::integer, "export, of a model folder: only its first N layers",
                   "N", false, 1},
                  {"--check", Takes::flag,
                   "export: hold the logits of FOLDER against those of the transformers library"},
                  {"--python", Takes::text, "a Python that has it (python3)", "PATH"}},
      .examples = {"nnscaler checkpoint inspect checkpoints/last",
                   "nnscaler checkpoint diff runs/a/last runs/b/last",
                   "nnscaler checkpoint merge checkpoints/last merged",
                   "nnscaler checkpoint export checkpoints/last llama-trained --dtype bfloat16",
                   "nnscaler checkpoint export Llama-3-8B llama-mini --layers 4"},
      .notes =
          "diff leaves with 1 where the two differ. merge puts the slices of all ranks\n"
          "together and writes a checkpoint under FOLDER.\n"
          "export writes config.json and safetensors under the names of the `transformers`\n"
          "library. Folders of that kind need no import: `generate`,\n"
          "checkpoint.init_from and nnscaler.from_pretrained read them as they are. check, of "
          "such\n"
          "a folder, and export --check compare logits with those of the library.",
  };
}

}  // namespace nns::cli
