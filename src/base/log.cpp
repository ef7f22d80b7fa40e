#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <ctime>

#include "base/error.h"

namespace nns::log {
namespace {

std::atomic<Level> g_level{Level::info};
thread_local int t_rank = 0;
thread_local int t_world = 1;

constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "OFF"};

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

void raw_line(std::string_view text) {
  std::string line(text);
  line += '\n';
  // One write call a line: lines of several ranks or threads never mix.
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void write(Level level, std::string_view logger, std::string_view text) {
  if (level < g_level.load() || (t_rank != 0 && level < Level::warning)) return;
  const std::string rank = t_world > 1 ? fmt::format(" | rank {}", t_rank) : std::string();
  raw_line(fmt::format("{} | {} | {}{} | {}", now(), kNames[static_cast<int>(level)], logger, rank,
                       text));
}

}  // namespace nns::log
