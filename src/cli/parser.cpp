// The command line: CLI11 parses what command.h declares; the values go to Lua as one table.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>

#include "base/version.h"
#include "cli/command.h"
#include "job/value.h"
#include "launch/link.h"
#include "script/state.h"

namespace nns::cli {
namespace {

std::string field_name(const Argument& a) {
  std::string name = a.name.substr(a.name.find_last_of(',') + 1);
  name.erase(0, name.find_first_not_of('-'));
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(c));
  return name;
}

std::string spelling(const Argument& a) {
  return a.value.empty() ? a.name : fmt::format("{} {}", a.name, a.value);
}

std::string usage(const Command& c) {
  std::string out = "nnscaler " + c.name;
  for (const Argument& a : c.positionals) {
    const std::string name = a.name + (a.takes == Takes::texts ? "…" : "");
    out += a.required ? " " + name : fmt::format(" [{}]", name);
  }
  if (!c.options.empty()) out += " [options]";
  return out;
}

void print_rows(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [left, right] : rows) width = std::max(width, left.size());
  for (const auto& [left, right] : rows) fmt::print("  {:<{}}  {}\n", left, width, right);
}

void print_help(const Command& c) {
  fmt::print("{}\n\nusage: {}\n\n", c.summary, usage(c));
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Argument& a : c.positionals) rows.emplace_back(a.name, a.help);
  for (const Argument& a : c.options) rows.emplace_back(spelling(a), a.help);
  rows.emplace_back("-h,--help", "print this help");
  print_rows(rows);
  if (!c.notes.empty()) fmt::print("\n{}\n", c.notes);
  if (!c.examples.empty()) fmt::print("\nexamples:\n");
  for (const std::string& e : c.examples) fmt::print("  {}\n", e);
}

void print_overview() {
  fmt::print(
      "nnscaler {} trains models described in Lua on one device or many\n\n"
      "usage: nnscaler COMMAND …      nnscaler FILE.lua [arguments…]\n\n",
      kVersion);
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Command& c : commands()) rows.emplace_back(c.name, c.summary);
  rows.emplace_back("help COMMAND", "Explain a command");
  rows.emplace_back("FILE.lua", "Run a script");
  print_rows(rows);
  fmt::print("\nexamples:\n  nnscaler run recipes/nanogpt.lua preset=tiny\n  nnscaler help run\n");
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& c : commands()) {
    if (c.name == name) return c;
    names.push_back(c.name);
  }
  const std::string near = job::nearest(name, names);
  throw Error(
      ErrorKind::usage, fmt::format("[cli.command] unknown command '{}'", name),
      near.empty() ? "nnscaler help lists the commands" : fmt::format("did you mean '{}'?", near));
}

// What was given, by argument name.
struct Given {
  std::deque<std::string> texts;  // stable addresses for CLI11
  std::deque<std::vector<std::string>> lists;
  std::deque<bool> flags;
  std::map<std::string, std::pair<CLI::Option*, const void*>> by_name;
  bool help = false;
};

void declare(CLI::App& app, const Argument& a, Given& given) {
  CLI::Option* option = nullptr;
  const void* target = nullptr;
  if (a.takes == Takes::flag) {
    bool& flag = given.flags.emplace_back(false);
    option = app.add_flag(a.name, flag);
    target = &flag;
  } else if (a.takes == Takes::texts) {
    auto& list = given.lists.emplace_back();
    option = app.add_option(a.name, list);
    target = &list;
  } else {
    auto& text = given.texts.emplace_back();
    option = app.add_option(a.name, text);
    target = &text;
  }
  given.by_name[a.name] = {option, target};
}

void parse(const Command& c, CLI::App& app, Given& given, int argc, char** argv) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", given.help);
  for (const Argument& a : c.positionals) declare(app, a, given);
  for (const Argument& a : c.options) declare(app, a, given);
  const std::string hint = fmt::format("nnscaler help {}", c.name);
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorKind::usage, fmt::format("[cli.{}] {}", c.name, e.what()), hint);
  }
  for (const std::string& extra : app.remaining()) {
    std::vector<std::string> names;
    for (const Argument& a : c.options)
      names.push_back(a.name.substr(a.name.find_last_of(',') + 1));
    const std::string near = job::nearest(extra, names);
    throw Error(
        ErrorKind::usage,
        fmt::format("[cli.{}] {} '{}'", c.name,
                    extra.rfind('-', 0) == 0 ? "unknown option" : "unexpected argument", extra),
        near.empty() ? hint : fmt::format("did you mean '{}'?", near));
  }
  if (given.help) return;
  for (const Argument& a : c.positionals)
    if (a.required && given.by_name[a.name].first->count() == 0)
      throw Error(ErrorKind::usage, fmt::format("[cli.{}] {} is missing", c.name, a.name),
                  "usage: " + usage(c));
}

void push_strings(lua_State* L, const std::vector<std::string>& list) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  for (size_t i = 0; i < list.size(); ++i) {
    script::push_string(L, list[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

void push_number(lua_State* L, const Command& c, const Argument& a, const std::string& text) {
  const job::Value v = job::scalar(text);
  const bool whole = a.takes == Takes::integer;
  if (!v.is(job::Value::Kind::number) || (whole && std::floor(v.number) != v.number))
    fail(ErrorKind::usage, "[cli.{}] {} is '{}'; expected {}", c.name, a.name, text,
         whole ? "an integer" : "a number");
  const std::string name = a.name.substr(0, a.name.find(','));
  if (v.number < a.least)
    fail(ErrorKind::usage, "[cli.{}] {} is {}; expected {} of at least {}", c.name, name, text,
         whole ? "an integer" : "a number", job::number_text(a.least));
  if (v.number < -job::kExact || v.number > job::kExact)
    fail(ErrorKind::usage, "[cli.{}] {} is {}; expected {} to 2^53 - 1", c.name, name, text,
         a.least > -job::kExact ? job::number_text(a.least) : "-2^53 + 1");
  lua_pushnumber(L, v.number);
}

// Pushes the table of all that was given.
void push_given(lua_State* L, const Command& c, const Given& given) {
  lua_createtable(L, 0, 8);
  for (const auto* group : {&c.positionals, &c.options})
    for (const Argument& a : *group) {
      const auto& [option, target] = given.by_name.at(a.name);
      if (a.takes == Takes::texts)
        push_strings(L, *static_cast<const std::vector<std::string>*>(target));
      else if (option->count() == 0)
        continue;
      else if (a.takes == Takes::flag)
        lua_pushboolean(L, *static_cast<const bool*>(target));
      else if (a.takes == Takes::text)
        script::push_string(L, *static_cast<const std::string*>(target));
      else
        push_number(L, c, a, *static_cast<const std::string*>(target));
      lua_setfield(L, -2, field_name(a).c_str());
    }
}

// An error of a rank is said before anything is torn down: what it holds may wait for the others.
void call_as_rank(script::State& state, int arguments, int results) {
  try {
    state.call(arguments, results);
  } catch (const Error& e) {
    launch::leave_failed(e, &report);
    throw;
  }
}

int call_lua(const Command& c, const Given& given) {
  std::fflush(stdout);  // Lua's print does not go through stdio
  script::State state;
  lua_State* L = state.raw();
  state.require("nnscaler.commands." + c.name);
  lua_getfield(L, -1, given.help ? "help" : "run");
  push_given(L, c, given);
  call_as_rank(state, 1, 1);
  return static_cast<int>(lua_tointeger(L, -1));
}

int run_script(int argc, char** argv) {  // argv: nnscaler FILE.lua arguments…
  script::State state;
  lua_State* L = state.raw();
  const std::string file = argv[1];
  const size_t slash = file.rfind('/');
  state.add_search_folder(slash == std::string::npos ? "." : file.substr(0, slash));
  state.require("nnscaler.script");
  push_strings(L, {argv + 2, argv + argc});
  script::push_string(L, file);
  lua_insert(L, -2);
  call_as_rank(state, 2, 0);
  return 0;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all{run_command(),        compile_command(),  plan_command(),
                                        profile_command(),    generate_command(), import_command(),
                                        checkpoint_command(), data_command(),     doctor_command(),
                                        test_command(),       verify_command(),   diff_command(),
                                        version_command()};
  return all;
}

int dispatch(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "help";
  if (name == "help" || name == "--help" || name == "-h") {
    if (argc > 2)
      print_help(find_command(argv[2]));
    else
      print_overview();
    return 0;
  }
  if (name == "--version") return version_command().act();
  if (name.ends_with(".lua")) return run_script(argc, argv);
  const Command& command = find_command(name);
  CLI::App app;
  Given given;
  parse(command, app, given, argc, argv);
  if (given.help) {
    print_help(command);
    const bool about_job = command.own_help && !command.positionals.empty() &&
                           given.by_name[command.positionals[0].name].first->count() > 0;
    return about_job ? call_lua(command, given) : 0;
  }
  return command.act != nullptr ? command.act() : call_lua(command, given);
}

}  // namespace nns::cli
