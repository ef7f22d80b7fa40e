// The one reporter of errors.
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "launch/launch.h"
#include "launch/link.h"
#include "launch/slot.h"

namespace nns::cli {
namespace {

// Among several ranks: which one, and where it was.
std::string who() {
  if (!launch::is_watched()) return "";
  return fmt::format("rank {}, {}: ", launch::read_launch().rank, launch::describe(launch::slot()));
}

}  // namespace

// A usage error is the user's own line: a stack would only hide it.
void report(const Error& e) {
  std::string text = fmt::format("error: {}{}\n", who(), e.message());
  if (!e.hint().empty()) text += fmt::format("hint: {}\n", e.hint());
  const bool debug = debugging();
  if (!e.traceback().empty() && (debug || e.kind() != ErrorKind::usage))
    text += e.traceback() + "\n";
  if (debug) text += last_backtrace();
  std::fflush(stdout);
  log::set_status("", 0);
  std::fputs(text.c_str(), stderr);
}

}  // namespace nns::cli
