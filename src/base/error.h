// The one error type of the project. A message reads
//   [area.op] what is wrong: value; expected …
// and may carry a hint that says what to change. The rank is added once, by the top-level reporter.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace nns {

// Who can mend it. `usage` leaves with exit code 2, all others with 1.
enum class ErrorKind { usage, model, plan, data, communication, state, internal };

// Returns the lower-case name of a kind ("usage", …).
std::string_view name_of(ErrorKind kind);
// Returns the kind with this name, or `internal` if there is none.
ErrorKind error_kind(std::string_view name);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message, std::string hint = {}, std::string traceback = {});

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }  // without the hint
  const std::string& hint() const { return hint_; }
  const std::string& traceback() const { return traceback_; }  // Lua stack, or empty
  int exit_code() const { return kind_ == ErrorKind::usage ? 2 : 1; }

 private:
  ErrorKind kind_;
  std::string message_, hint_, traceback_;
};

// Whether NNSCALER_DEBUG=1 asks for C++ backtraces and full stacks.
bool debugging();
// The C++ stack of the newest Error made on this thread, or "" unless debugging().
const std::string& last_backtrace();

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Checks what must hold if our own code is right; never for what a user can cause.
#define NNS_CHECK(condition, ...)                                                                  \
  do {                                                                                             \
    if (!(condition))                                                                              \
      throw ::nns::Error(::nns::ErrorKind::internal,                                               \
                         fmt::format("[{}:{}] {}", __FILE__, __LINE__, fmt::format(__VA_ARGS__))); \
  } while (0)

}  // namespace nns
