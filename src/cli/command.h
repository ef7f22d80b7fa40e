// A subcommand is declared here as data: what it takes, what it says about itself. parser.cpp makes
// the command line of it, and the work is done by lua/nnscaler/commands/NAME.lua.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "job/schema.h"

namespace nns::cli {

enum class Takes { text, integer, number, flag, texts };

struct Argument {
  std::string name;  // "JOB" or "--metrics"; the Lua field is its lower case without dashes
  Takes takes = Takes::text;
  std::string help;
  std::string value = {};  // what stands for the value in the help: FILE
  bool required = false;
  double least = -job::kExact;  // of integers and numbers
};

struct Command {
  std::string name;
  std::string summary;
  std::vector<Argument> positionals = {};
  std::vector<Argument> options = {};
  std::vector<std::string> examples = {};
  std::string notes = {};  // further help
  bool own_help = false;   // --help with a first positional goes to Lua's `help`
  int (*act)() = nullptr;  // instead of the Lua module
};

Command run_command();
Command compile_command();
Command plan_command();
Command profile_command();
Command generate_command();
Command import_command();
Command checkpoint_command();
Command data_command();
Command diff_command();
Command doctor_command();
Command test_command();
Command verify_command();
Command version_command();

const std::vector<Command>& commands();

// Prints an error: the cause, what to change, then where it happened.
void report(const Error& error);

// Runs `argv` and returns the exit code; throws nns::Error.
int dispatch(int argc, char** argv);

}  // namespace nns::cli
