// Source lines for error messages and comments of generated code.
#pragma once

#include <string>

#include "base/types.h"

struct lua_State;

namespace nns::trace {

// Returns a line of a Lua file (from disk, or of the library compiled in) without surrounding white
// space; "" when it cannot be read. Files are kept once read.
std::string source_line(const std::string& file, int line);
// Returns the last line in [first, last] that holds the word `return`, or `last`.
int return_line(const std::string& file, int first, int last);

// Whether the result of a line is plainly no condition: it goes into a local that the lines below
// only return, if that ("local accuracy = …" of which evaluation alone returns the value).
bool plainly_no_branch(const std::string& file, int line);

// Returns the line of the model that is running: the innermost Lua frame outside the library's
// plumbing. A frame that ended in a tail call (`return F.relu(x)`) is gone: then the line on which
// the running module's forward returns, or `fallback` outside of modules.
SourceLoc model_place(lua_State* L, const SourceLoc& fallback);
// Returns where the function at `index` returns, or {"", 0} if it is not written in a Lua file.
SourceLoc place_of_return(lua_State* L, int index);

}  // namespace nns::trace
