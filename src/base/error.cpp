#include "base/error.h"

#include <cxxabi.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

namespace nns {
namespace {

constexpr std::array<std::pair<ErrorKind, std::string_view>, 7> kNames{{
    {ErrorKind::usage, "usage"},
    {ErrorKind::model, "model"},
    {ErrorKind::plan, "plan"},
    {ErrorKind::data, "data"},
    {ErrorKind::communication, "communication"},
    {ErrorKind::state, "state"},
    {ErrorKind::internal, "internal"},
}};

std::string with_hint(const std::string& message, const std::string& hint) {
  return hint.empty() ? message : message + "\nhint: " + hint;
}

thread_local std::string t_backtrace;

// "library(mangled+0x12) [address]" with the name made readable.
std::string readable(const std::string& frame) {
  const size_t open = frame.find('('), plus = frame.find('+', open);
  if (open == std::string::npos || plus == std::string::npos || plus == open + 1) return frame;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(frame.substr(open + 1, plus - open - 1).c_str(), nullptr, nullptr,
                          &status),
      std::free);
  return status == 0 ? frame.substr(0, open + 1) + name.get() + frame.substr(plus) : frame;
}

std::string backtrace_text() {
  std::array<void*, 64> frames{};
  const int n = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  const std::unique_ptr<char*, void (*)(void*)> names(::backtrace_symbols(frames.data(), n),
                                                      std::free);
  std::string out = "C++ backtrace:\n";
  for (int i = 2; i < n; ++i) out += fmt::format("\t{}\n", readable(names.get()[i]));
  return out;
}

}  // namespace

bool debugging() {
  static const bool on = [] {
    const char* value = std::getenv("NNSCALER_DEBUG");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return on;
}

const std::string& last_backtrace() {
  return t_backtrace;
}

std::string_view name_of(ErrorKind kind) {
  for (const auto& [k, name] : kNames)
    if (k == kind) return name;
  return "internal";
}

ErrorKind error_kind(std::string_view name) {
  for (const auto& [kind, n] : kNames)
    if (n == name) return kind;
  return ErrorKind::internal;
}

Error::Error(ErrorKind kind, std::string message, std::string hint, std::string traceback)
    : std::runtime_error(with_hint(message, hint)),
      kind_(kind),
      message_(std::move(message)),
      hint_(std::move(hint)),
      traceback_(std::move(traceback)) {
  // One that comes back out of Lua has a Lua traceback; the stack of its origin is kept.
  if (traceback_.empty() && debugging()) t_backtrace = backtrace_text();
}

}  // namespace nns
