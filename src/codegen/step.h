// The step of an optimizer as Lua.
#pragma once

#include <string>

#include "codegen/head.h"

namespace nns::codegen {

// The lines that define `step`, a table of one function for each kind of instruction of the
// program's step; empty where it has none.
std::string step_text(const lower::Program& program, const Groups& groups);

}  // namespace nns::codegen
