// A library of ours that stands beside this one and is opened at its first use.
#pragma once

#include <string>

namespace nns {

struct Plugin {
  void* function = nullptr;  // nullptr where the library cannot be opened,
  std::string error;         // with the reason
};

// Opens the library of this file name and finds its function. Its own symbols come first for it:
// LibTorch has parts of other libraries (protobuf) inside.
Plugin open_plugin(const char* library, const char* function);

}  // namespace nns
