// Reads a job from text: YAML with exact places, the places of a Lua recipe's literal tables, and
// `key.sub=value` from the command line.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "job/value.h"

namespace nns::job {

// Returns the document as a map. Syntax errors, duplicate keys and a document that is not a map are
// usage errors with file:line:column.
Value parse_yaml(std::string_view text, const std::string& file);
// Returns the document, whatever it is: null where the text is empty.
Value parse_document(std::string_view text, const std::string& file);
// Returns the value of one YAML expression of the command line: [1, 2], {a: b}, 'text', or a
// scalar.
Value parse_expression(std::string_view text, const Mark& mark);

// Where the keys of the table that a Lua chunk returns are written.
struct Places {
  Mark table;                         // the chunk's `return`
  std::map<std::string, Mark> marks;  // dotted path → line of the key; list items count from 0
};
// Finds them without running the chunk: the table after the last `return` of the chunk itself, or
// the one that the returned local was initialised with. A key written twice in one literal table is
// a usage error with both lines.
Places scan_lua(std::string_view text, const std::string& file);
// Gives each part of a table that a recipe returned its place: its own, else that of what holds it.
void mark_from(Value& value, const Places& places);

// One `key.sub=value` or `key.sub!`.
struct Override {
  std::string path;
  Value value;
  bool remove = false;
};
// Throws a usage error if the text has neither form.
Override parse_override(std::string_view text);
// Changes the tree; list items are named by index from 0, the index after the last appends.
void apply(const Override& change, Value& root);

}  // namespace nns::job
