// A configuration as plain data: what a recipe returned or a YAML file says, each part with the
// place where the user wrote it. Lua functions and objects appear as opaque values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nns::job {

// Where a value was written. Line 0: no place in a file (`file` then says what, as "command line").
struct Mark {
  std::string file;
  int line = 0;
  int column = 0;  // 0: unknown
};
// "job.yaml:3:1", "recipe.lua:12" or "command line".
std::string to_string(const Mark& mark);

struct Field;

struct Value {
  enum class Kind { null, boolean, number, text, list, map, opaque };

  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text;           // of text; spelling of a scalar; description of an opaque value
  std::vector<Value> items;   // of list
  std::vector<Field> fields;  // of map, in the order written
  Mark mark;
  int ref = 0;            // Lua value behind an opaque value or a table of a recipe; 0: none
  bool callable = false;  // opaque: a function
  bool whole = false;     // map: handed on as the very table that `ref` names
  bool spelled =
      false;  // a scalar from the command line: `text` may be taken where text is expected

  bool is(Kind k) const { return kind == k; }
  // Returns the field's value, or nullptr if this is not a map or has no such field.
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  // Returns the field's value, added as null if missing; a null value becomes a map first.
  Value& field(std::string_view key);
  // Removes the field; returns whether it was there.
  bool erase(std::string_view key);

  static Value of_text(std::string text, Mark mark = {});
  static Value of_number(double number, Mark mark = {});
  static Value of_boolean(bool boolean, Mark mark = {});
};

struct Field {
  std::string key;
  Value value;
};

// A job has at most so many values, those that stand in it again (by an alias, by $(…), by a table
// that occurs twice) counted as often as they occur, and at most so many levels.
inline constexpr size_t kMostValues = 100'000;
inline constexpr int kMostLevels = 50;
// Raises a usage error where there are more.
void check_count(size_t values, const Mark& mark);

// Says what a value is, for messages: "the text 'abc'", "the number 1.5", "a list", "a function".
std::string describe(const Value& value);

// Parses a plain YAML scalar: null, booleans, numbers (`1e-3` too), all else text (`yes` too).
Value scalar(std::string_view spelling, Mark mark = {});

// "1", "0.001", with as many digits as it takes.
std::string number_text(double number);

// Returns the parts of a dotted path.
std::vector<std::string> split_path(std::string_view path);

// Returns the name that differs least from `name`, or "" if none is near.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace nns::job
