// Source lines for error messages and comments of generated code.
#pragma once

#include <string>

namespace nns::trace {

// Returns a line of a Lua file (from disk, or of the library compiled in) without surrounding white
// space; "" when it cannot be read. Files are kept once read.
std::string source_line(const std::string& file, int line);
// Returns the last line in [first, last] that holds the word `return`, or `last`.
int return_line(const std::string& file, int first, int last);

}  // namespace nns::trace
