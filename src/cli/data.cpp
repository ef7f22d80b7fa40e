// `nnscaler data`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command data_command() {
  return {
      .name = "data",
      .summary = "Turn texts into files of tokens",
      .positionals = {{"ACTION", Takes::text, "prepare", {}, true},
                      {"INPUT", Takes::texts,
                       "text files (a document each), .jsonl files (a document a line), .parquet "
                       "files (a document a row), folders of such"}},
      .options = {{"--tokenizer", Takes::text, "tokenizer.json, SentencePiece .model, or folder",
                   "PATH"},
                  {"--out", Takes::text, "folder to write", "FOLDER"},
                  {"--bos", Takes::text, "token before each document, or none", "TOKEN"},
                  {"--eos", Takes::text, "token after each document, or none", "TOKEN"},
                  {"--field", Takes::text,
                   "field of a JSON line, or column, that holds the text (text)", "NAME"},
                  {"--block", Takes::integer, "tokens of a window, for recipes that name none", "N",
                   false, 1},
                  {"--piece-mib", Takes::integer,
                   "such files are worked on, and written, in pieces of about so many MiB (64)",
                   "N", false, 1},
                  {"--threads", Takes::integer, "pieces worked on at one time (all cores)", "N",
                   false, 1}},
      .examples = {"nnscaler data prepare corpus/ --tokenizer llama/tokenizer.json --out tokens"},
      .notes =
          "Without --bos and --eos, bos_token and eos_token of the tokenizer_config.json beside\n"
          "the tokenizer count. What is there already, of the same inputs and settings, is\n"
          "kept: started again, the command goes on where it was.",
  };
}

}  // namespace nns::cli
