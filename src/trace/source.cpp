#include "trace/source.h"

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "script/library.h"

namespace nns::trace {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (in) {
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  for (size_t i = 0; i < script::kEmbeddedCount; ++i)
    if (file == script::kEmbedded[i].path)
      return {script::kEmbedded[i].text, script::kEmbedded[i].size};
  return {};
}

const std::vector<std::string>& lines_of(const std::string& file) {
  static std::mutex mutex;  // each rank thread has its own Lua state, and traces
  static std::map<std::string, std::vector<std::string>> files;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = files.try_emplace(file);
  if (fresh) {
    std::istringstream in(text_of(file));
    for (std::string line; std::getline(in, line);) found->second.push_back(line);
  }
  return found->second;  // never removed, so the reference stays good
}

}  // namespace

std::string source_line(const std::string& file, int line) {
  const auto& lines = lines_of(file);
  if (line < 1 || static_cast<size_t>(line) > lines.size()) return {};
  const std::string& text = lines[static_cast<size_t>(line) - 1];
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

int return_line(const std::string& file, int first, int last) {
  for (int line = last; line >= first; --line)
    if (source_line(file, line).find("return") != std::string::npos) return line;
  return last;
}

}  // namespace nns::trace
