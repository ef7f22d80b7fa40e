#include "trace/source.h"

#include <array>
#include <fstream>
#include <lua.hpp>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>
#include <string_view>
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

// Library code whose lines tell the user nothing about their model.
bool is_plumbing(std::string_view file) {
  static constexpr std::array parts = {"nnscaler/nn/", "nnscaler/tensor/", "nnscaler/functional",
                                       "nnscaler/ops.", "nnscaler/recompute."};
  for (const std::string_view part : parts)
    if (file.find(part) != std::string_view::npos) return true;
  return false;
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

bool plainly_no_branch(const std::string& file, int line) {
  const auto& lines = lines_of(file);
  if (line < 1 || static_cast<size_t>(line) > lines.size()) return false;
  const std::string& text = lines[static_cast<size_t>(line) - 1];
  static const std::regex assignment(R"(^(\s*)local\s+([A-Za-z_]\w*)\s*=[^=](.*)$)");
  static const std::regex condition(R"(==|~=|\b(and|or|not|if|while|until)\b)");
  std::smatch found;
  if (!std::regex_match(text, found, assignment) || std::regex_search(text, condition))
    return false;
  const auto indent = static_cast<size_t>(found[1].length());
  const std::regex name("\\b" + found[2].str() + "\\b");
  const std::regex returned(R"(\breturn\b[^(]*$)");
  for (size_t i = static_cast<size_t>(line); i < lines.size(); ++i) {
    const std::string& below = lines[i];
    const size_t first = below.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    if (first < indent) break;  // the end of the block
    for (std::sregex_iterator at(below.begin(), below.end(), name), end; at != end; ++at) {
      const std::string before = below.substr(0, static_cast<size_t>(at->position()));
      if (!std::regex_search(before, returned)) return false;
    }
  }
  return true;
}

SourceLoc place_of_return(lua_State* L, int index) {
  lua_pushvalue(L, index);
  if (!lua_isfunction(L, -1)) {
    lua_pop(L, 1);
    return {};
  }
  lua_Debug info;
  lua_getinfo(L, ">S", &info);
  if (info.source[0] != '@') return {};
  const std::string file = info.source + 1;
  return {file, return_line(file, info.linedefined, info.lastlinedefined)};
}

SourceLoc model_place(lua_State* L, const SourceLoc& fallback) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame) == 1; ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0 || frame.source[0] != '@') continue;
    const std::string_view source = frame.source + 1;
    if (source.ends_with("nnscaler/trace.lua")) break;
    if (!is_plumbing(source)) return {std::string(source), frame.currentline};
    if (!source.ends_with("nnscaler/nn/module.lua")) continue;
    const char* name = lua_getlocal(L, &frame, 1);
    if (name == nullptr) continue;
    SourceLoc place;
    if (std::string_view(name) == "self" && lua_istable(L, -1)) {
      lua_getfield(L, -1, "forward");
      place = place_of_return(L, -1);
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (place.line > 0 && !is_plumbing(place.file)) return place;
  }
  return fallback;
}

}  // namespace nns::trace
