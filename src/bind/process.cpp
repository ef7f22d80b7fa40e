// nnscaler._C.process: what a running job asks of its process: termination signals seen at step
// boundaries, resident memory, references to Lua values, processors.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "bind/bind.h"
#include "launch/launch.h"
#include "launch/slot.h"
#include "script/state.h"

namespace nns::bind {
namespace {

using script::guarded;

constexpr std::array<int, 2> kSignals{SIGINT, SIGTERM};
std::atomic<int> g_signal{0};
std::atomic<unsigned> g_grace{0};  // seconds after SIGTERM; 0: as many as it takes
// What is said when they are over: the text that counts, and one to write the next into.
std::array<std::array<char, 1024>, 2> g_texts;
std::atomic<size_t> g_text{0};
std::array<struct sigaction, kSignals.size()> g_before;
bool g_watching = false;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

// First signal: remembered until the next step boundary. Second: the process ends at once.
void on_signal(int signal) {
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) {
    if (signal == SIGTERM) alarm(g_grace);
    return;
  }
  launch::slot().phase = launch::Phase::interrupted;
  _exit(128 + signal);
}

void on_alarm(int) {
  const char* text = g_texts[g_text].data();
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {
    // nobody listens
  }
  launch::slot().phase = launch::Phase::interrupted;
  _exit(128 + SIGTERM);
}

int watch_signals(lua_State*) {  // (): from now on SIGINT and SIGTERM only set the flag
  if (g_watching) return 0;
  g_signal = 0;
  launch::slot();  // made now: the handler only writes it
  struct sigaction action{};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &g_before[i]);
  g_watching = true;
  return 0;
}

int unwatch_signals(lua_State*) {  // (): puts the former handlers back
  if (!g_watching) return 0;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &g_before[i], nullptr);
  g_watching = false;
  g_grace = 0;
  alarm(0);
  return 0;
}

int limit_end(lua_State* L) {  // (seconds, text)
  const auto seconds = luaL_checkinteger(L, 1);
  const std::string text = script::check_string(L, 2);
  if (!text.empty()) {  // of ranks that are threads, one has a text
    const size_t next = 1 - g_text;
    std::snprintf(g_texts[next].data(), g_texts[next].size(), "%s", text.c_str());
    g_text = next;
  }
  struct sigaction action{};
  action.sa_handler = &on_alarm;
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
  g_grace = static_cast<unsigned>(seconds);
  return 0;
}

int pending_signal(lua_State* L) {  // () → number of the signal seen since watch_signals, or nil
  const int signal = g_signal;
  if (signal == 0)
    lua_pushnil(L);
  else
    lua_pushinteger(L, signal);
  return 1;
}

int rss_bytes(lua_State* L) {  // () → resident bytes of this process
  long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) fail(ErrorKind::state, "[process.rss] cannot read /proc/self/statm");
  const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  if (fields != 2) fail(ErrorKind::state, "[process.rss] /proc/self/statm has no page counts");
  lua_pushnumber(L, static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  return 1;
}

// The number that a file of the system begins with; nothing where there is none ("max").
std::optional<double> number_in(const char* path) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return std::nullopt;
  double number = 0;
  const bool found = std::fscanf(file, "%lf", &number) == 1;
  std::fclose(file);
  return found ? std::optional(number) : std::nullopt;
}

int free_bytes(lua_State* L) {  // () → bytes that processes of this host, or container, can take
  double bytes =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (std::FILE* file = std::fopen("/proc/meminfo", "r"); file != nullptr) {
    char line[128];
    double kb = 0;
    while (std::fgets(line, sizeof line, file) != nullptr)
      if (std::sscanf(line, "MemAvailable: %lf", &kb) == 1) bytes = kb * 1024;
    std::fclose(file);
  }
  const auto most = number_in("/sys/fs/cgroup/memory.max");
  const auto now = number_in("/sys/fs/cgroup/memory.current");
  if (most && now) bytes = std::min(bytes, std::max(*most - *now, 0.0));
  lua_pushnumber(L, bytes);
  return 1;
}

int processors(lua_State* L) {  // () → processors this process may use
  lua_pushinteger(L, std::max(1U, std::thread::hardware_concurrency()));
  return 1;
}

int references(lua_State* L) {  // () → references to Lua values that C++ holds in this process
  lua_pushnumber(L, static_cast<double>(script::Ref::live()));
  return 1;
}

int processor_list(lua_State* L) {  // () → numbers of those processors, as "0,1"
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    fail(ErrorKind::state, "[process.processors] the system does not tell which are usable");
  std::string list;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) list += (list.empty() ? "" : ",") + std::to_string(i);
  script::push_string(L, list);
  return 1;
}

int host(lua_State* L) {  // () → name of this host, text that differs between hosts
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  script::push_string(L, name);
  script::push_string(L, launch::host_id());
  return 2;
}

int open(lua_State* L) {
  lua_createtable(L, 0, 10);
  script::set_functions(L, {{"watch_signals", guarded<watch_signals>},
                            {"unwatch_signals", guarded<unwatch_signals>},
                            {"limit_end", guarded<limit_end>},
                            {"pending_signal", guarded<pending_signal>},
                            {"rss_bytes", guarded<rss_bytes>},
                            {"free_bytes", guarded<free_bytes>},
                            {"processors", guarded<processors>},
                            {"processor_list", guarded<processor_list>},
                            {"host", guarded<host>},
                            {"references", guarded<references>}});
  return 1;
}

}  // namespace

void open_process(lua_State* L) {
  script::preload(L, "nnscaler._C.process", guarded<open>);
}

}  // namespace nns::bind
