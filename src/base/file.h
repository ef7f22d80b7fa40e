// Whole files, atomically: what is written is either the old file or the complete new one.
#pragma once

#include <string>
#include <string_view>

namespace nns {

// Returns the bytes of a file, or throws an Error of the given area that names path and reason.
std::string read_file(const std::string& path, std::string_view area);
// Writes through a temporary file in the same folder, fsync and rename; throws on failure (disk
// full, no permission) and leaves the old file as it was. Of a link the file that it leads to is
// replaced; a device or a pipe is written to.
void write_file_atomic(const std::string& path, std::string_view bytes, std::string_view area);

}  // namespace nns
