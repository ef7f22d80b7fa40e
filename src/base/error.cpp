#include "base/error.h"

#include <array>
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

}  // namespace

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
      traceback_(std::move(traceback)) {}

}  // namespace nns
