// The one schema of a job. A Lua table and a YAML file are two spellings of it; the command line,
// `nnscaler run --help` and docs/configuration.md are made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nns::job {

enum class Type {
  boolean,
  integer,
  number,
  text,
  choice,      // one of the words in Key::choices
  words,       // a choice, or a table of choices by names of the receiver
  names,       // a text or a list of texts
  map,         // free table: whatever the receiver takes
  function,    // Lua only
  component,   // { type, args } or, in Lua, the thing itself
  components,  // a list of components
  hooks,       // a component or a table of functions by name
  group,       // holds the keys below it
};

inline constexpr double kUnbounded = -1e300;
inline constexpr double kExact = 9007199254740991;  // 2^53 - 1: what integers end at

struct Key {
  const char* path;  // dotted
  Type type;
  const char* fallback;  // default in YAML; "" = none; kRequired
  const char* unit;      // "" = none
  const char* help;
  bool programs = false;  // whether generated programs depend on it
  double minimum = kUnbounded;
  const char* choices = "";  // words separated by spaces
  double maximum = kExact;   // what is larger would overflow somewhere
};

inline constexpr const char* kRequired = "(required)";

// All keys in the order of the documentation; a component's `type` and `args` are rows of their
// own.
std::span<const Key> keys();
// Returns the row, or nullptr if there is none.
const Key* find_key(std::string_view path);
// Returns the rows right below `path` ("" = top level).
std::vector<const Key*> children(std::string_view path);
// All paths, for suggestions.
std::vector<std::string> all_paths();

// "integer ≥ 1", "mean | sum", "component": as documentation and messages say it.
std::string type_text(const Key& key);

// docs/configuration.md.
std::string document();

}  // namespace nns::job
