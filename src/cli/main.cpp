#include <cstdio>

#include "script/state.h"

int main(int argc, char** argv) {
  try {
    nns::script::State state;
    if (argc > 1) {
      state.load_file(argv[1]);
      state.call(0, 0);
    }
    return 0;
  } catch (const nns::Error& e) {
    std::fprintf(stderr, "%s\n%s\n", e.what(), e.traceback().c_str());
    return e.exit_code();
  }
}
