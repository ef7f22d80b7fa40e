// Program → Lua text that people read: one function for each distinct repeated block, called once a
// layer with that layer's parameters; the source line and module path behind each call.
#pragma once

#include <string>

#include "lower/program.h"

namespace nns::codegen {

// The file's text. The same Program gives the same bytes. `config` is one line that tells the
// settings it was made for; it stands in the header.
std::string to_lua(const lower::Program& program, const std::string& config = {});

// What a generated file says of itself, read from its head.
struct Header {
  std::string key;      // graph, program and version it belongs to
  std::string config;   // what to_lua was given, or empty
  std::string body;     // hash of everything below the header when it was written
  bool edited = false;  // the text below the header is no longer what was written
};
// The key that to_lua writes for this program.
std::string key_of(const lower::Program& program);
// Reads the head of a generated file; throws a state Error when it has none.
Header read_header(const std::string& text, const std::string& path);

}  // namespace nns::codegen
