// What find_blocks and codegen agree on about repeated blocks.
#pragma once

#include <string_view>

namespace nns::lower {

// Whether a logical name or a random key belongs to the module at `path`: "h.0.fc.weight" and
// "h.0:dropout#0" do to "h.0".
bool below_path(std::string_view name, std::string_view path);

}  // namespace nns::lower
