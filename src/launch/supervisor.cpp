#include "launch/supervisor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "launch/hub.h"

namespace nns::launch {
namespace {

constexpr double kMpirunEnds = 5;  // after its ranks are gone

std::atomic<int> g_signal{0}, g_signals{0};

void on_signal(int number) {
  g_signal = number;
  ++g_signals;
}

std::string find_mpirun() {
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const auto file = std::filesystem::path(rest.substr(0, colon)) / "mpirun";
    if (::access(file.c_str(), X_OK) == 0) return file.string();
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  throw Error(ErrorKind::usage, "[launch.mpirun] no mpirun on PATH; -n starts the ranks with it",
              "install Open MPI (Debian: openmpi-bin), start the ranks by torchrun, or set "
              "comm.backend=local: ranks are threads then");
}

std::vector<std::string> command_of(const Supervision& what) {
  std::vector<std::string> command{find_mpirun(),
                                   "-q",
                                   "--bind-to",
                                   "none",
                                   "--oversubscribe",
                                   "-np",
                                   std::to_string(what.ranks)};
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  command.push_back(what.program);
  command.insert(command.end(), what.arguments.begin(), what.arguments.end());
  return command;
}

int free_port() {
  int port = 0;
  ::close(listen_anywhere(port));
  return port;
}

pid_t start(const Supervision& what, const Endpoint& endpoint) {
  std::vector<std::string> command = command_of(what);
  std::vector<char*> arguments;
  for (std::string& text : command) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  setenv(kWatchVariable, endpoint.text().c_str(), 1);
  if (what.meets_by_tcp) {
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::state, "[launch.mpirun] cannot fork: {}", std::strerror(errno));
  if (child > 0) return child;
  // A group of its own: the terminal's Ctrl-C comes to the supervisor alone. mpirun ends its ranks
  // when it is asked to, also by the death of the supervisor.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int nothing = ::open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

// The child's exit code once it has ended.
std::optional<int> ended(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int supervise(const Supervision& what) {
  Hub hub(what.ranks, what.beat_s, -1);
  struct sigaction action{};
  action.sa_handler = &on_signal;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  const pid_t child = start(what, hub.endpoint());
  int relayed = 0;
  double alone_since = 0;
  bool cut_short = false;  // mpirun, after its ranks have ended
  while (true) {
    hub.step(0.05);
    for (; relayed < g_signals; ++relayed) hub.signal(g_signal);
    if (const auto code = ended(child)) {
      if (cut_short && !hub.verdict()) return g_signals > 0 ? 128 + g_signal : 0;
      // What the ranks said last is still in their connections.
      if (*code != 0 && !hub.verdict())
        hub.declare(-1, fmt::format("mpirun ended with exit code {}", *code), *code);
      while (hub.verdict() && !hub.finished()) hub.step(0.05);
      return hub.verdict() ? hub.verdict()->code : *code;
    }
    if (!hub.finished()) continue;
    if (alone_since == 0) alone_since = seconds();
    if (seconds() - alone_since > kMpirunEnds) {
      cut_short = true;
      kill(-child, SIGKILL);
    }
  }
}

}  // namespace nns::launch
