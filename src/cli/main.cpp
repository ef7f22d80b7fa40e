// Entry point and the one reporter of errors.
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "cli/command.h"

namespace {

// The cause, what to change, then where it happened. A usage error is the person's own line: a
// stack would only hide it.
void report(const nns::Error& e) {
  std::string text = fmt::format("error: {}\n", e.message());
  if (!e.hint().empty()) text += fmt::format("hint: {}\n", e.hint());
  const bool debug = nns::debugging();
  if (!e.traceback().empty() && (debug || e.kind() != nns::ErrorKind::usage))
    text += e.traceback() + "\n";
  if (debug) text += nns::last_backtrace();
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return nns::cli::dispatch(argc, argv);
  } catch (const nns::Error& e) {
    report(e);
    return e.exit_code();
  } catch (const std::exception& e) {
    report(nns::Error(nns::ErrorKind::internal, e.what()));
    return 1;
  }
}
