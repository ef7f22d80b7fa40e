// `nnscaler test`: its options and help.
#include "cli/command.h"

namespace nns::cli {

Command test_command() {
  return {
      .name = "test",
      .summary = "Run specs in busted's style",
      .positionals = {{"PATHS", Takes::texts, "folders and *_spec.lua files", {}, true}},
      .options = {{"--filter", Takes::text, "only tests whose name matches this Lua pattern",
                   "PATTERN"},
                  {"-v,--verbose", Takes::flag, "name every test that passed"}},
      .examples = {"nnscaler test tests/lua", "nnscaler test my_spec.lua --filter softmax"},
      .notes = "Exit code 1 if a test failed.",
  };
}

}  // namespace nns::cli
