// The header of a generated file: what it belongs to, and whether the user has edited it.
#include "codegen/lua.h"

#include <algorithm>

#include "base/error.h"
#include "base/version.h"
#include "codegen/file.h"

namespace nns::codegen {

std::string key_of(const Program& program) {
  return fmt::format("format=1 graph={} program={} nnscaler={}", hex(program.graph_hash),
                     hex(lower::hash(program)), kVersion);
}

namespace {

constexpr std::string_view kConfig = "-- config: ";

// The settings in as many lines as they need.
std::string settings_lines(std::string_view config) {
  std::string out;
  while (!config.empty()) {
    size_t length = std::min(config.size(), kWidth - kConfig.size());
    if (const size_t comma = config.rfind(',', length - 1);
        length < config.size() && comma != config.npos)
      length = comma + 1;
    out += fmt::format("{}{}\n", kConfig, config.substr(0, length));
    config.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::string to_lua(const Program& program, const std::string& config) {
  const std::string body = FileWriter(program).body();
  return fmt::format(
             "-- {} ({}), rank {} of {}: written by nnscaler, may be edited.\n"
             "-- It runs as long as the key is that of the model; the second hash tells an edited "
             "file.\n"
             "-- key: {}\n{}-- body: {}\n",
             program.model, program.training ? "training" : "evaluation", program.rank,
             program.world, key_of(program), settings_lines(config), hex(hash_bytes(body))) +
         body;
}

Header read_header(const std::string& text, const std::string& path) {
  const auto field = [&](const std::string& mark) {
    const size_t at = text.find(mark);
    if (at == std::string::npos)
      throw Error(ErrorKind::state,
                  fmt::format("[codegen.header] {} has no line '{}…'", path, mark),
                  "it is not a file that nnscaler wrote: move it away");
    const size_t start = at + mark.size();
    return std::pair(text.substr(start, text.find('\n', start) - start), text.find('\n', start));
  };
  Header header;
  header.key = field("\n-- key: ").first;
  const auto [body, end] = field("\n-- body: ");
  header.body = body;
  const std::string_view head = std::string_view(text).substr(0, std::min(end, text.size()));
  for (size_t at = 0; (at = head.find(kConfig, at)) < head.size();) {
    at += kConfig.size();
    header.config += head.substr(at, head.find('\n', at) - at);
  }
  const std::string below = end == std::string::npos ? "" : text.substr(end + 1);
  header.edited = hex(hash_bytes(below)) != body;
  return header;
}

}  // namespace nns::codegen
