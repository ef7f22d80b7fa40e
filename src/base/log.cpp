#include "base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <mutex>

#include "base/error.h"

namespace nns::log {
namespace {

std::atomic<Level> g_level{Level::info};
thread_local int t_rank = 0;
thread_local int t_world = 1;

constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "OFF"};

// The line below the log; empty: there is none.
struct Status {
  std::string text;
  int columns = 0;
};
std::mutex g_status_mutex;
Status g_status;

// What removes the status line. A terminal that has become narrower has broken it into several.
std::string erased_status() {
  if (g_status.text.empty()) return "";
  const int width = terminal_columns();
  const int above = width > 0 ? (g_status.columns - 1) / width : 0;
  return above > 0 ? fmt::format("\r\033[{}A\033[J", above) : "\r\033[K";
}

void put(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data() + done, bytes.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm parts{};
  localtime_r(&t, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace

void set_level(Level level) {
  g_level = level;
}

void set_level(std::string_view name) {
  static constexpr std::string_view names[] = {"debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 5; ++i)
    if (names[i] == name) return set_level(static_cast<Level>(i));
  throw Error(ErrorKind::usage, fmt::format("[log.level] unknown level: '{}'", name),
              "the levels are debug, info, warning, error and off");
}

Level level() {
  return g_level;
}

void set_rank(int rank, int world) {
  t_rank = rank;
  t_world = world;
}

int terminal_columns() {
  winsize size{};
  if (::isatty(STDERR_FILENO) == 0) return 0;
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void raw_line(std::string_view text) {
  const std::scoped_lock lock(g_status_mutex);
  // One write call a line: lines of several ranks or threads never mix.
  put(fmt::format("{}{}\n{}", erased_status(), text, g_status.text));
}

void set_status(std::string_view text, int columns) {
  const std::scoped_lock lock(g_status_mutex);
  std::string erased = erased_status();
  if (erased.empty() && !text.empty()) erased = "\r\033[K";  // whatever stands in that line
  g_status = {std::string(text), columns};
  put(erased + g_status.text);
}

Aside::Aside() {
  g_status_mutex.lock();
  put(erased_status());
}

Aside::~Aside() {
  put(g_status.text);
  g_status_mutex.unlock();
}

void write(Level level, std::string_view logger, std::string_view text) {
  if (level < g_level.load() || (t_rank != 0 && level < Level::warning)) return;
  const std::string rank = t_world > 1 ? fmt::format(" | rank {}", t_rank) : std::string();
  raw_line(fmt::format("{} | {} | {}{} | {}", now(), kNames[static_cast<int>(level)], logger, rank,
                       text));
}

}  // namespace nns::log
