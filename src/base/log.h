// The log: one line a message on stderr, `time | LEVEL | logger | text`. Rank 0 writes all levels,
// other ranks warnings and errors only. Whole lines, also from several threads.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace nns::log {

enum class Level { debug, info, warning, error, off };

// Sets the least level that is written; throws a usage error that lists the names if unknown.
void set_level(std::string_view name);
void set_level(Level level);
Level level();
// Rank and number of ranks of the calling thread's process; with more than one rank each line is
// marked `rank N`.
void set_rank(int rank, int world);

void write(Level level, std::string_view logger, std::string_view text);
// Writes a line (newline added) to stderr as it is: progress, reports.
void raw_line(std::string_view text);

// Columns of the terminal that stderr is, or 0 where it is none.
int terminal_columns();
// The line below the log on the terminal of stderr: a progress bar. What this program writes there
// is written above it, as whole lines. `columns` is how many of them the text takes; "" removes it.
void set_status(std::string_view text, int columns);

// Takes the status line away while it lives: for text that goes to the terminal by another way.
class Aside {
 public:
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
};

template <class... Args>
void info(std::string_view logger, fmt::format_string<Args...> f, Args&&... args) {
  if (level() <= Level::info)
    write(Level::info, logger, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void debug(std::string_view logger, fmt::format_string<Args...> f, Args&&... args) {
  if (level() <= Level::debug)
    write(Level::debug, logger, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void warning(std::string_view logger, fmt::format_string<Args...> f, Args&&... args) {
  if (level() <= Level::warning)
    write(Level::warning, logger, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void error(std::string_view logger, fmt::format_string<Args...> f, Args&&... args) {
  if (level() <= Level::error)
    write(Level::error, logger, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace nns::log
