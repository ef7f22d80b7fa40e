// Which build of the planner core this is.
#pragma once

#include <string>

namespace nns {

// The linker's hash of the library that holds the planner core and the Lua library: equal in
// processes of one build. Hexadecimal digits.
std::string build_id();

}  // namespace nns
