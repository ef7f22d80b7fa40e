// `nnscaler generate`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command generate_command() {
  return {
      .name = "generate",
      .summary = "Sample text from a trained model",
      .positionals = {{"CHECKPOINT",
                       Takes::text,
                       "folder of a checkpoint, or one with last or best",
                       {},
                       true}},
      .options = {{"--prompt", Takes::text, "text to go on from", "TEXT"},
                  {"--tokens", Takes::integer, "tokens to sample (200)", "N"},
                  {"--temperature", Takes::number, "0 takes the likeliest token (0.8)", "T"},
                  {"--top-k", Takes::integer, "sample among the k likeliest tokens", "K"},
                  {"--seed", Takes::integer, "seed of the sampling (0)", "N", false, 0},
                  {"--log-level", Takes::text, "debug, info, warning, error or off", "LEVEL"}},
      .examples = {"nnscaler generate checkpoints/best --prompt 'ROMEO:' --tokens 300"},
  };
}

}  // namespace nns::cli
