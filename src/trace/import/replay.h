// Runs an imported program through the operator door: its calls compute, or are recorded while a
// model is traced, as those of a Lua model.
#pragma once

#include <optional>
#include <string>

#include "trace/import/program.h"

struct lua_State;

namespace nns::trace::import {

struct Widening {  // of a model that was given a wider dtype than it was exported with
  DType from = DType::f32, to = DType::f64;
};

// Runs the body. The table at stack index `inputs` holds one value per input of the body, from 1;
// pushes a table of the outputs. `path` is that of the module that the program is.
void replay(lua_State* L, const Body& body, int inputs, const std::string& path,
            std::optional<Widening> widening);

}  // namespace nns::trace::import
