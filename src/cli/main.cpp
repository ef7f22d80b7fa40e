// Entry point.
#include <exception>

#include "cli/command.h"

int main(int argc, char** argv) {
  try {
    return nns::cli::dispatch(argc, argv);
  } catch (const nns::Error& e) {
    nns::cli::report(e);
    return e.exit_code();
  } catch (const std::exception& e) {
    nns::cli::report(nns::Error(nns::ErrorKind::internal, e.what()));
    return 1;
  }
}
